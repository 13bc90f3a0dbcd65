"""A line in the log when a pool with roles has nobody to prefill, or to encode (fault D07).

Requests go on, computed whole by their destination, so nothing but a counter would tell: a missing
label or a prefill deployment that is not ready would stay unseen for days. Pools without roles say
nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from epp.errors import Refusal
from epp.framework import Decision, Request

QUIET_S = 60.0
"""At most one line in this time; it counts the requests since the one before."""

log = structlog.get_logger(__name__)


class SplitAlarm:
    """An observer of decisions. `has_roles`: whether any member of the pool has a role."""

    def __init__(self, *, has_roles: Callable[[], bool], clock: Callable[[], float]) -> None:
        self._has_roles = has_roles
        self._clock = clock
        self._missing = {
            "no-prefill-pods": _Missing("nobody to prefill: no ready endpoint has a role for it"),
            "no-encode-pods": _Missing("nobody to encode: no ready endpoint has a role for it"),
        }

    def decided(self, decision: Decision, request: Request, why: str, took_s: float) -> None:
        for word in (decision.split, decision.encoding.why):
            missing = self._missing.get(word)
            if missing is not None:
                self._count(missing)

    def _count(self, missing: "_Missing") -> None:
        missing.requests += 1
        now = self._clock()
        if now < missing.next_at:
            return
        missing.next_at = now + QUIET_S
        if self._has_roles():
            log.warning(
                missing.told,
                requests=missing.requests,
                do="look at the roles and the readiness of /debug/endpoints",
            )
        missing.requests = 0

    def refused(self, refusal: Refusal) -> None:
        """Nothing was decided."""

    def failed(self, step: str) -> None:
        """Shows in the decision's reason."""

    def ignored(self, header: str) -> None:
        """Says nothing about a decision."""

    def answered(self, request: Request, status: int, *, as_told: bool) -> None:
        """Not part of a decision."""

    def shadowed(self, request: Request, *, agreed: bool | None) -> None:
        """Not part of a decision, either."""


@dataclass(slots=True)
class _Missing:
    """What to tell of who is not there, and for how many requests since the last line."""

    told: str
    next_at: float = float("-inf")
    requests: int = 0
