"""The contract between the picker and its plugins. Plugins import only this."""

from .plugins import Scorer
from .types import (
    NO_MATCH,
    Decision,
    Endpoint,
    EndpointId,
    Incarnation,
    Load,
    Lora,
    Match,
    PoolId,
    Request,
    Role,
    Rung,
    ScoreRow,
    Source,
)

__all__ = [
    "NO_MATCH",
    "Decision",
    "Endpoint",
    "EndpointId",
    "Incarnation",
    "Load",
    "Lora",
    "Match",
    "PoolId",
    "Request",
    "Role",
    "Rung",
    "ScoreRow",
    "Scorer",
    "Source",
]
