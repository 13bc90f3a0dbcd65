"""The words for the order of an engine's messages, and how one follows another. Pure."""

from dataclasses import dataclass
from enum import Enum

from .events import Frame


class Forget(Enum):
    """All that is known of the cache is no longer true, and why."""

    GAP = "gap"
    """Messages are missing that can't be had again."""
    RESTART = "restart"
    """The engine began a new life."""
    AFRESH = "afresh"
    """All is told again from the first message on."""


class Proven(Enum):
    """What a writer before remembered is still true."""

    PROVEN = "proven"


Step = Frame | Forget | Proven
"""What to do next: apply a message, forget, or believe the memory."""


class Continuity(Enum):
    """How a message follows the one before it."""

    FIRST = "first"
    NEXT = "next"
    GAP = "gap"
    RESTART = "restart"
    DUPLICATE = "duplicate"


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """A replay that is wanted. Another one is another object: what comes for this one is late."""

    start: int
    """Sequence of the first message that is asked for."""


@dataclass(slots=True)
class SequenceCounts:
    """Only ever rise."""

    gaps: int = 0
    restarts: int = 0
    duplicates: int = 0
    replays: int = 0
    """Replays that were asked for."""
    replayed: int = 0
    """Messages taken from replays."""
    failed_replays: int = 0
    overflows: int = 0
    """Replays given up because too many live messages waited."""


def continuity(last: int | None, seq: int) -> Continuity:
    """How `seq` follows `last`, the latest message."""
    if last is None:
        return Continuity.FIRST
    if seq == last + 1:
        return Continuity.NEXT
    if seq > last:
        return Continuity.GAP
    # A life that ended after one message repeats 0. A needless reset is the cheaper error.
    if seq == last and seq != 0:
        return Continuity.DUPLICATE
    return Continuity.RESTART
