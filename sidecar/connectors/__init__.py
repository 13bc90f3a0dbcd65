"""Plans of handoff: what a connector wants on each leg. One small file each."""

from collections.abc import Mapping
from typing import Literal, get_args

from .mooncake import Mooncake
from .nixlv2 import NixlV2
from .offloading import Offloading
from .plan import Meeting, NoMeetingError, Plan, Question
from .ports import Ports
from .sglang import Sglang
from .shared_storage import SharedStorage

__all__ = [
    "CONNECTORS",
    "Connector",
    "Meeting",
    "NoMeetingError",
    "Plan",
    "Ports",
    "Question",
    "plan_of",
]

Connector = Literal["nixlv2", "shared-storage", "sglang", "mooncake", "offloading"]
CONNECTORS: tuple[Connector, ...] = get_args(Connector)


def plan_of(name: Connector, ports: Ports) -> Plan:
    """The plan of this name."""
    plans: Mapping[Connector, Plan] = {
        "nixlv2": NixlV2(),
        "shared-storage": SharedStorage(),
        "sglang": Sglang(ports),
        "mooncake": Mooncake(ports),
        "offloading": Offloading(ports),
    }
    return plans[name]
