"""The handoff of one request: a prefill leg on another pod, then a decode leg here. Pure.

Rules
 1. A leg begins with `SendPrefill` or `SendDecode` and ends with exactly one of `PrefillAnswered`,
    `PrefillFailed`, `DecodeEnded`, `DecodeFailed`, also after it was cancelled. One leg at a time,
    but for rule 10.
 2. Each leg has a fresh id. Parameters go out on one decode leg, once; they are never kept.
 3. Before the prefill's answer a client that leaves cancels the prefill. An answer that comes all
    the same is a commitment: after it the decode leg is always sent, and aborted after its first
    byte or `drain_s`, so that the prefill engine frees its blocks.
 4. Parameters go out before `answered_at + lease_s - margin_s` or never: a late pull answers with
    another prompt's KV. Too late means one fresh prefill, then the decode engine alone.
 5. Prefill answers of `CLIENT_ERRORS` are the client's. All other failures lead to the next
    candidate and then to `on_prefill_failure`. A refused connection surely computed nothing and
    costs no retry; after other failures at most `prefill_retries` more legs are sent, and each that
    leaves a leg of unknown fate behind is counted as a copy.
 6. A 200 without usable parameters leads to the decode engine alone, by its reason, with no retry.
 7. A failed pull (rule `_may_repeat`) is repeated once without parameters, by `on_pull_failure` and
    only if no byte has reached the client. The caller holds bytes back until it has seen that the
    answer does not open with an error event (`openings`), and only then says `DecodeFirstByte`.
 8. Every leg has a time limit. A limit cancels; what then comes is the leg's one end (rule 1).
 9. The client gets one outcome: a decode leg's bytes, one error answer, or one of our own. Nothing
    follows `Finished`, and no leg runs then.
10. `PrefillBegun` says that the two engines meet: the decode leg runs beside its prefill leg. When
    the prefill fails before the decode engine's first byte, the decode leg is aborted, and its end
    is taken for the prefill's failure (rule 5). A client that leaves cancels the prefill first;
    if it answers all the same, rule 3 holds for the decode leg.
11. A decode engine that is asked first (`decode_first`) and is `COLD` has computed nothing: the
    request goes on as if it had just arrived.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from epp.errors import EppError

from .transfer.params import MISADDRESSED, UNPAIRED, Transfer
from .transfer.steps import (
    AbortDecode,
    Action,
    Arrived,
    CancelPrefill,
    ClientGone,
    CutAnswer,
    DecodeEnded,
    DecodeFailed,
    DecodeFirstByte,
    DrainDecode,
    Ending,
    Event,
    Fallback,
    Fault,
    Finished,
    HandoffPolicy,
    PassThrough,
    PrefillAnswered,
    PrefillBegun,
    PrefillFailed,
    Refuse,
    SendDecode,
    SendPrefill,
    TimedOut,
)
from .transfer.targets import Target

CLIENT_ERRORS = frozenset({400, 401, 403, 404, 413, 422})

_REFUSAL_STATUS = {Fault.CONNECT: 503, Fault.CANCELLED: 504}
_ENGINE_WORDS = {
    Fault.CONNECT: "engine-absent",
    Fault.CANCELLED: "engine-silent",
    Fault.GARBLED: "engine-garbled",
}
_UNKNOWN_FATE = {Fault.LOST, Fault.GARBLED, Fault.CANCELLED}
_PULL_FAULTS = {Fault.LOST, Fault.GARBLED, Fault.CANCELLED, Fault.ERROR_EVENT}


class HandoffOrderError(EppError):
    """The caller broke rule 1: a fault of the sidecar itself."""

    reason = "handoff-order"


class _State(Enum):
    NEW = auto()
    PREFILLING = auto()
    DECODING = auto()
    """The decode leg is sent and has given no byte."""
    STREAMING = auto()
    ENDING = auto()
    """The client has what it gets; the prefill leg beside has not ended."""
    DONE = auto()


@dataclass(slots=True)
class Handoff:
    """State of one request. `leg_base` is unique in the pool; leg ids are made from it."""

    policy: HandoffPolicy
    leg_base: str
    _state: _State = field(default=_State.NEW, init=False)
    _waiting: list[Target] = field(default_factory=list, init=False)  # candidates not tried yet
    _target: Target | None = field(default=None, init=False)
    _first_byte_s: float = field(default=0.0, init=False)
    _leg: str = field(default="", init=False)
    _stopping: bool = field(default=False, init=False)  # the leg was cancelled or aborted
    _beside: str = field(default="", init=False)  # the prefill leg that runs beside it (rule 10)
    _beside_stopping: bool = field(default=False, init=False)
    _lost: PrefillFailed | None = field(default=None, init=False)  # what the decode leg ends for
    _last: Finished | None = field(default=None, init=False)  # said once nothing runs
    _client_gone: bool = field(default=False, init=False)
    _pulling: bool = field(default=False, init=False)  # the decode leg carries parameters
    _refreshed: bool = field(default=False, init=False)
    _retries: int = field(default=0, init=False)
    _path: str = field(default="prefill", init=False)
    _stranded: list[str] = field(default_factory=list, init=False)
    _copies: int = field(default=0, init=False)
    _prefills: int = field(default=0, init=False)
    _decodes: int = field(default=0, init=False)

    @property
    def done(self) -> bool:
        return self._state is _State.DONE

    @property
    def phase(self) -> str:
        """What it waits for: a metric's label."""
        return self._state.name.lower()

    def on(self, event: Event, now: float) -> list[Action]:
        """What to do about an event. Raises HandoffOrderError when it cannot happen here."""
        state = self._state
        match event:
            case ClientGone():
                actions = self._left()
            case TimedOut(leg):
                actions = self._timed_out(leg)
            case Arrived() if state is _State.NEW:
                actions = self._arrived(event)
            case PrefillBegun(leg) if state is _State.PREFILLING and leg == self._leg:
                actions = self._met(event)
            case PrefillAnswered(leg) | PrefillFailed(leg) if leg == self._beside and leg:
                actions = self._beside_ended(event)
            case PrefillAnswered(leg) if state is _State.PREFILLING and leg == self._leg:
                actions = self._answered(event, now)
            case PrefillFailed(leg) if state is _State.PREFILLING and leg == self._leg:
                actions = self._prefill_failed(event)
            case DecodeFirstByte(leg) if state is _State.DECODING and leg == self._leg:
                actions = self._first_byte()
            case DecodeEnded(leg) if self._decode_runs and leg == self._leg:
                actions = self._decode_ended()
            case DecodeFailed(leg) if self._decode_runs and leg == self._leg:
                actions = self._decode_failed(event)
            case _:
                raise HandoffOrderError(f"{type(event).__name__} cannot happen in {state.name}")
        return actions

    @property
    def _decode_runs(self) -> bool:
        return self._state is _State.DECODING or self._state is _State.STREAMING

    def _arrived(self, event: Arrived) -> list[Action]:
        policy = self.policy
        self._first_byte_s = policy.stream_s if event.streams else policy.answer_s
        if event.unsplittable is not None:
            return self._decode_alone(event.unsplittable)
        self._waiting = list(event.targets)
        if not self._waiting:
            return self._decode_alone("no-targets")
        if event.decode_first:
            self._path = "warm"
            return self._decode(None, None, probe=True)
        return self._prefill(self._waiting.pop(0))

    def _left(self) -> list[Action]:
        """Rule 3. A leg that is being stopped already needs nothing more."""
        if self._client_gone or self._state in {_State.ENDING, _State.DONE}:
            return []
        self._client_gone = True
        if self._state is _State.NEW:
            return self._finish(Ending.CLIENT_GONE)
        if self._state is _State.DECODING and self._pulling and not self._stopping:
            if self._beside:
                return self._cancel_beside()
            return [DrainDecode(self._leg, self.policy.drain_s)]
        return self._stop()

    def _timed_out(self, leg: str) -> list[Action]:
        """Rule 8. After the first byte the caller's idle limit holds, not ours."""
        if leg == self._leg and self._state in {_State.PREFILLING, _State.DECODING}:
            return self._stop()
        return self._cancel_beside() if leg == self._beside else []

    def _stop(self) -> list[Action]:
        if self._stopping:
            return []
        self._stopping = True
        prefilling = self._state is _State.PREFILLING
        return [CancelPrefill(self._leg) if prefilling else AbortDecode(self._leg)]

    # --- prefill leg

    def _prefill(self, target: Target) -> list[Action]:
        self._state, self._target, self._stopping = _State.PREFILLING, target, False
        self._prefills += 1
        self._leg = f"{self.leg_base}-p{self._prefills}"
        return [SendPrefill(self._leg, target, self.policy.prefill_s)]

    def _answered(self, event: PrefillAnswered, now: float) -> list[Action]:
        transfer = event.transfer
        if event.missing in {UNPAIRED, MISADDRESSED}:
            self._stranded.append(event.missing)
        if self._client_gone and (transfer is None or not transfer.leased):
            return self._finish(Ending.CLIENT_GONE)
        if transfer is None:
            return self._decode_alone(event.missing)
        if not transfer.leased:
            self._path = "split"
            return self._decode(transfer, None)
        deadline = event.answered_at + self.policy.lease_s - self.policy.margin_s
        if now > deadline:
            return self._too_late()
        self._path = "split"
        return self._decode(transfer, deadline)

    def _too_late(self) -> list[Action]:
        """Rule 4: these parameters must never be sent."""
        self._stranded.append("lease-over")
        if self._client_gone:
            return self._finish(Ending.CLIENT_GONE)
        if self._refreshed or self._target is None:
            return self._decode_alone("lease-over")
        self._refreshed = True
        return self._prefill(self._target)

    def _prefill_failed(self, event: PrefillFailed) -> list[Action]:
        """Rule 5."""
        if self._client_gone:
            return self._finish(Ending.CLIENT_GONE)
        fault = event.fault
        if fault is Fault.STATUS and event.status in CLIENT_ERRORS:
            return self._finish(Ending.PASSED, PassThrough(event.leg))
        free = fault is Fault.CONNECT
        if self._waiting and (free or self._retries < self.policy.prefill_retries):
            self._retries += not free
            self._copies += fault in _UNKNOWN_FATE
            return self._prefill(self._waiting.pop(0))
        word = f"prefill-{_word(fault)}"
        if self.policy.on_prefill_failure is Fallback.RECOMPUTE:
            return self._decode_alone(word)
        if fault is Fault.STATUS:
            return self._finish(Ending.PASSED, PassThrough(event.leg))
        return self._finish(Ending.REFUSED, Refuse(_REFUSAL_STATUS.get(fault, 502), word))

    # --- both legs at once (rule 10)

    def _met(self, event: PrefillBegun) -> list[Action]:
        if self._stopping:
            return []  # the prefill's end says how it goes on
        self._beside, self._beside_stopping = self._leg, False
        self._path = "split"
        return self._decode(event.transfer, None, extra_s=self.policy.prefill_s)

    def _cancel_beside(self) -> list[Action]:
        if not self._beside or self._beside_stopping:
            return []
        self._beside_stopping = True
        return [CancelPrefill(self._beside)]

    def _beside_ended(self, event: PrefillAnswered | PrefillFailed) -> list[Action]:
        self._beside = ""
        if self._last is not None:
            self._state = _State.DONE
            return [self._last]
        if self._state is not _State.DECODING or not self._pulling or self._stopping:
            return []
        if isinstance(event, PrefillFailed):
            self._lost = event
            return self._stop()
        return [DrainDecode(self._leg, self.policy.drain_s)] if self._client_gone else []

    # --- decode leg

    def _decode_alone(self, why: str) -> list[Action]:
        self._path = why
        return self._decode(None, None)

    def _decode(
        self,
        transfer: Transfer | None,
        deadline: float | None,
        *,
        probe: bool = False,
        extra_s: float = 0.0,
    ) -> list[Action]:
        self._state, self._stopping = _State.DECODING, False
        self._pulling = transfer is not None and transfer.leased
        self._decodes += 1
        self._leg = f"{self.leg_base}-d{self._decodes}"
        limit = self.policy.drain_s if self._client_gone else self._first_byte_s + extra_s
        gone = self._client_gone
        return [SendDecode(self._leg, transfer, limit, deadline, release=gone, probe=probe)]

    def _first_byte(self) -> list[Action]:
        if self._stopping:
            return []  # it came after all, but nobody gets it
        self._state = _State.STREAMING
        return self._stop() if self._client_gone else []

    def _decode_ended(self) -> list[Action]:
        if self._client_gone:
            return self._finish(Ending.CLIENT_GONE)
        if self._stopping:
            return self._decode_failed(DecodeFailed(self._leg, Fault.CANCELLED))
        return self._finish(Ending.ANSWERED)

    def _decode_failed(self, event: DecodeFailed) -> list[Action]:
        lost, self._lost = self._lost, None
        if lost is not None:
            return self._prefill_failed(lost)
        fault = event.fault
        if self._pulling and fault is Fault.LATE:
            return self._too_late()
        if self._pulling and fault is Fault.CONNECT:
            self._stranded.append("decode-unreachable")
        elif self._pulling and fault is Fault.STATUS and event.status < 500:
            self._stranded.append("decode-rejected")
        if self._client_gone:
            return self._finish(Ending.CLIENT_GONE)
        if self._state is _State.STREAMING:
            return self._finish(Ending.CUT, CutAnswer())
        return self._failed_unseen(event)

    def _failed_unseen(self, event: DecodeFailed) -> list[Action]:
        """The client has got nothing yet. Rules 7 and 11."""
        fault = event.fault
        if fault is Fault.COLD:
            return self._prefill(self._waiting.pop(0))
        if self._may_repeat(event):
            return [*self._cancel_beside(), *self._decode_alone(f"pull-{_word(fault)}")]
        if fault in {Fault.STATUS, Fault.ERROR_EVENT}:
            return self._finish(Ending.PASSED, PassThrough(self._leg))
        refusal = Refuse(_REFUSAL_STATUS.get(fault, 502), _ENGINE_WORDS.get(fault, "engine-lost"))
        return self._finish(Ending.REFUSED, refusal)

    def _may_repeat(self, event: DecodeFailed) -> bool:
        """Whether the pull may be what failed. The engine's answer alone does not tell."""
        status_5xx = event.fault is Fault.STATUS and event.status >= 500
        return (
            self._pulling
            and (status_5xx or event.fault in _PULL_FAULTS)
            and self.policy.on_pull_failure is Fallback.RECOMPUTE
        )

    def _finish(self, ending: Ending, *last: Action) -> list[Action]:
        finished = Finished(
            ending=ending,
            path=self._path,
            stranded=tuple(self._stranded),
            copies=self._copies,
            prefills=self._prefills,
            decodes=self._decodes,
        )
        if self._beside:
            self._state, self._last = _State.ENDING, finished
            return [*last, *self._cancel_beside()]
        self._state = _State.DONE
        return [*last, finished]


def _word(fault: Fault) -> str:
    """A cancelled leg whose client still waits ran into its time limit."""
    return "timeout" if fault is Fault.CANCELLED else fault.value
