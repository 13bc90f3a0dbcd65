"""What happens in a handoff and what is done about it: events, actions, policy. Values only.

Events and actions are never changed once they are made.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

from .params import Transfer
from .targets import Target


class Fallback(StrEnum):
    RECOMPUTE = "recompute"
    """The decode engine computes the prompt itself."""
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffPolicy:
    """Time limits in seconds, and what to do after failures."""

    prefill_s: float = 120.0
    """From sending a prefill leg to the end of its answer."""
    stream_s: float = 120.0
    """From sending a decode leg to its first byte, for a stream."""
    answer_s: float = 900.0
    """The same for an answer in one piece, whose first byte comes last."""
    drain_s: float = 30.0
    """How long a decode leg may go on to its first byte after the client has left."""
    lease_s: float = 30.0
    """How long a prefill engine keeps blocks (`kv_lease_duration`)."""
    margin_s: float = 5.0
    prefill_retries: int = 1
    on_prefill_failure: Fallback = Fallback.RECOMPUTE
    on_pull_failure: Fallback = Fallback.RECOMPUTE

    def __post_init__(self) -> None:
        limits = (self.prefill_s, self.stream_s, self.answer_s, self.drain_s)
        if not all(0 < limit < float("inf") for limit in limits):
            raise ValueError("every leg needs a finite time limit above 0")
        if not 0 < self.margin_s < self.lease_s:
            raise ValueError("margin_s must be above 0 and below lease_s")
        if self.prefill_retries not in {0, 1}:
            raise ValueError("prefill_retries must be 0 or 1: more would pin more copies")

    def within(self, left_s: float | None) -> "HandoffPolicy":
        """The same for a request that its gateway gives up in so many seconds; None: nobody knows.

        A prefill leg gets half of them at most, so that a late one can still be made up for here.
        """
        if left_s is None or left_s <= 0.0 or left_s / 2 >= self.prefill_s:
            return self
        return _hurried(self, left_s / 2 if left_s < 1.0 else math.floor(left_s * 500) / 1000)


@lru_cache(maxsize=256)
def _hurried(policy: HandoffPolicy, prefill_s: float) -> HandoffPolicy:
    """Gateways give their requests the same times, which differ here by less than a millisecond."""
    return replace(policy, prefill_s=prefill_s)


class Fault(StrEnum):
    """How a leg failed."""

    CONNECT = "unreachable"
    """No connection: nothing was accepted."""
    LOST = "lost"
    """The connection broke before the end."""
    GARBLED = "garbled"
    """Not valid HTTP, or a status that no engine sends here."""
    STATUS = "status"
    """A whole answer with status 400 or above."""
    CANCELLED = "cancelled"
    """We asked for it."""
    ERROR_EVENT = "error-event"
    """Decode only: a 200 whose stream opens with an error."""
    LATE = "late"
    """Decode only: could not be sent before the deadline, and was not."""
    COLD = "cold"
    """Decode only: too little of the prompt is cached, and the engine was asked to say so."""


# --- events -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Arrived:
    """The request is here. `unsplittable` is the reason to send it to the decode engine alone."""

    targets: Sequence[Target] = ()
    unsplittable: str | None = None
    streams: bool = False
    decode_first: bool = False
    """Ask the decode engine, and prefill elsewhere only when it is `COLD`."""


@dataclass(slots=True)
class PrefillBegun:
    """The leg goes out, and its decode leg must go out as well: they meet by `transfer`."""

    leg: str
    transfer: Transfer


@dataclass(slots=True)
class PrefillAnswered:
    """A 200, read whole. `answered_at` is when its first byte came; without transfer say why."""

    leg: str
    transfer: Transfer | None
    answered_at: float
    missing: str = "no-params"


@dataclass(slots=True)
class PrefillFailed:
    leg: str
    fault: Fault
    status: int = 0


@dataclass(slots=True)
class DecodeFirstByte:
    """The answer is good so far; from here on its bytes go to the client."""

    leg: str


@dataclass(slots=True)
class DecodeEnded:
    leg: str


@dataclass(slots=True)
class DecodeFailed:
    leg: str
    fault: Fault
    status: int = 0


@dataclass(slots=True)
class ClientGone:
    pass


@dataclass(slots=True)
class TimedOut:
    """The limit that the leg was last given is over. Harmless when the leg has moved on."""

    leg: str


Event = (
    Arrived
    | PrefillBegun
    | PrefillAnswered
    | PrefillFailed
    | DecodeFirstByte
    | DecodeEnded
    | DecodeFailed
    | ClientGone
    | TimedOut
)

# --- actions ----------------------------------------------------------------------------------


@dataclass(slots=True)
class SendPrefill:
    leg: str
    target: Target
    within_s: float


@dataclass(slots=True)
class CancelPrefill:
    leg: str


@dataclass(slots=True)
class SendDecode:
    """`transfer` is taken while sending, by `deadline` (monotonic) at the latest.

    With `release` nobody waits for the answer: the plan's short body does. With `probe` the engine
    gets the client's own body and may answer that it is `COLD`.
    """

    leg: str
    transfer: Transfer | None
    within_s: float
    deadline: float | None = None
    release: bool = False
    probe: bool = False


@dataclass(slots=True)
class DrainDecode:
    """The client has left: the leg goes on to its first byte, within a new limit."""

    leg: str
    within_s: float


@dataclass(slots=True)
class AbortDecode:
    """Close the leg's connection. No byte of it goes to the client any more."""

    leg: str


@dataclass(slots=True)
class PassThrough:
    """The client gets this leg's whole answer: status, fields, body."""

    leg: str


@dataclass(slots=True)
class Refuse:
    """The client gets an answer of our own."""

    status: int
    reason: str


@dataclass(slots=True)
class CutAnswer:
    """The client's answer broke off: its connection must not end cleanly."""


class Ending(StrEnum):
    """What the client got. The values are metric labels."""

    ANSWERED = "answered"
    PASSED = "passed"
    """An engine's error answer."""
    REFUSED = "refused"
    CUT = "cut"
    CLIENT_GONE = "client-gone"


@dataclass(slots=True, kw_only=True)
class Finished:
    ending: Ending
    path: str
    """"split", or why the decode engine was alone, or "prefill" when no decode leg was sent."""
    stranded: tuple[str, ...] = ()
    """For each set of parameters that is surely not pulled: why."""
    copies: int = 0
    """Prefills whose fate is unknown and after which another was sent."""
    prefills: int = 0
    decodes: int = 0


Action = (
    SendPrefill
    | CancelPrefill
    | SendDecode
    | DrainDecode
    | AbortDecode
    | PassThrough
    | Refuse
    | CutAnswer
    | Finished
)
