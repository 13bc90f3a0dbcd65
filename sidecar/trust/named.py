"""Which pods a request may be handed to: who is named, and whether the picker did it. Pure.

Rules
 1. With a key, the lists are believed when `x-epp-handoff` seals them; then they need no list of
    members. Without a seal, or with a bad one, nobody is named: the request is served here alone,
    and the reason is counted. It is never refused, for a picker that is behind with its key must
    not take the pool down.
 2. Without a key (another vendor's picker), those are left that are members of the pool.
 3. Nobody hands anything to itself.
"""

from dataclasses import dataclass

from epp.protocol import DECISION_ID, ENCODERS, HANDOFF, KV_SOURCE, PREFILLER
from epp.seals import Named, SealKeys, joined
from sidecar.guard import Guard
from sidecar.http.incoming import Incoming
from sidecar.transfer import targets
from sidecar.transfer.metrics import HandoffMetrics
from sidecar.transfer.targets import Target

LISTS = (PREFILLER, ENCODERS, KV_SOURCE)
UNSEALED = "seal-missing"


@dataclass(slots=True, kw_only=True)
class Trust:
    """One for a sidecar. `keys` is replaced when the file changes."""

    guard: Guard
    pool: str
    metrics: HandoffMetrics
    keys: SealKeys | None = None

    def judged(self, request: Incoming, now_s: float) -> "Judged":
        """Look at the seal, once for a request. `now_s` is wall-clock time."""
        if self.keys is None:
            return Judged(self, request)
        error = self._error(request, self.keys, now_s)
        if error is not None:
            self.metrics.targets_refused.labels(error).inc()
        return Judged(self, request, error, sealed=True)

    def _error(self, request: Incoming, keys: SealKeys, now_s: float) -> str | None:
        seals, ids = request.values(HANDOFF), request.values(DECISION_ID)
        if not seals:
            return UNSEALED
        if len(seals) != 1 or len(ids) != 1:
            return "seal-malformed"
        prefill, encode, source = (joined(request.values(name)) for name in LISTS)
        named = Named(
            pool=self.pool, decision_id=ids[0], prefill=prefill, encode=encode, source=source
        )
        return keys.error(seals[0], named, now_s)


@dataclass(frozen=True, slots=True)
class Judged:
    """One request's lists, as far as they are believed."""

    _trust: Trust
    _request: Incoming
    error: str | None = None
    """Why none of its lists is believed."""
    sealed: bool = False

    def named(self, header: str) -> tuple[Target, ...] | str:
        """Who is named in one of `LISTS`, best first, or the stable reason why nobody is."""
        if self.error is not None:
            return self.error
        refused = self._trust.metrics.targets_refused
        read = targets.parse(self._request.values(header))
        if read.malformed:
            refused.labels("malformed").inc(read.malformed)
        guard = self._trust.guard
        allowed = guard.allowed(read.found, self._request.at, vouched=self.sealed)
        for reason in allowed.refused:
            refused.labels(reason).inc()
        return allowed.targets or (read.reason or allowed.reason or "no-targets")
