"""What a stream asks its transport to do. No I/O."""

from dataclasses import dataclass
from enum import Enum, auto

from .exchange import Arrival


class Code(Enum):
    """gRPC status of an abort, by gRPC's own names."""

    CANCELLED = auto()
    INVALID_ARGUMENT = auto()
    UNAVAILABLE = auto()


@dataclass(frozen=True, slots=True)
class Send:
    """Write one serialised ProcessingResponse."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Decide:
    """Ask the director, and give its outcome to `Stream.decided`. Happens at most once."""

    arrival: Arrival


@dataclass(frozen=True, slots=True)
class Finish:
    """End the stream with status OK: all that it owed has been sent."""

    refused: str = ""
    """Reason of the refusal that was sent, if it was one."""


@dataclass(frozen=True, slots=True)
class Abort:
    """End the stream with this status: the gateway's failure mode decides (A18)."""

    code: Code
    message: str


Action = Send | Decide | Finish | Abort
