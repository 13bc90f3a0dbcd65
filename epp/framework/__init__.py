"""The contract between the picker and its plugins. Plugins import only this."""

from typing import TYPE_CHECKING

from epp.config.values import Seconds

from .draws import Chance, sample
from .engines import EngineNames, Engines
from .plugins import (
    PRODUCED,
    Admitter,
    Comparer,
    Course,
    Decider,
    Detector,
    Discovery,
    Filter,
    Follower,
    Handler,
    LimitKeeper,
    Marker,
    MediaKeeper,
    MetricsReader,
    MetricsSource,
    ModelsReader,
    ModelsSource,
    NoCourse,
    Picker,
    Scorer,
    SessionReader,
    TokenSource,
    Watcher,
    parameters,
)
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
    Speeds,
    Stage,
)

if TYPE_CHECKING:
    from .candidates import COLUMNS, Candidates, Column, Mask, attribute

_OVER_COLUMNS = frozenset({"COLUMNS", "Candidates", "Column", "Mask", "attribute"})


def __getattr__(name: str) -> object:
    """Who uses columns loads numpy. A sidecar never does, and saves its 20 MB."""
    if name not in _OVER_COLUMNS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import candidates  # noqa: PLC0415 - numpy comes with it

    return getattr(candidates, name)


__all__ = [
    "COLUMNS",
    "NO_MATCH",
    "PRODUCED",
    "Admitter",
    "Candidates",
    "Chance",
    "Column",
    "Comparer",
    "Course",
    "Decider",
    "Decision",
    "Detector",
    "Discovery",
    "Endpoint",
    "EndpointId",
    "EngineNames",
    "Engines",
    "Filter",
    "Follower",
    "Handler",
    "Incarnation",
    "LimitKeeper",
    "Load",
    "Lora",
    "Marker",
    "Mask",
    "Match",
    "MediaKeeper",
    "MetricsReader",
    "MetricsSource",
    "ModelsReader",
    "ModelsSource",
    "NoCourse",
    "Picker",
    "PoolId",
    "Request",
    "Role",
    "Rung",
    "ScoreRow",
    "Scorer",
    "Seconds",
    "SessionReader",
    "Source",
    "Speeds",
    "Stage",
    "TokenSource",
    "Watcher",
    "attribute",
    "parameters",
    "sample",
]
