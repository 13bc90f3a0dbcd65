"""A line in the log when a pool with roles has nobody to prefill (fault D07).

Requests go on, computed whole by their destination, so nothing but a counter would tell: a missing
label or a prefill deployment that is not ready would stay unseen for days. Pools without roles say
nothing.
"""

from collections.abc import Callable

import structlog

from epp.errors import Refusal
from epp.framework import Decision, Request

QUIET_S = 60.0
"""At most one line in this time; it counts the requests since the one before."""

_NOBODY = "no-prefill-pods"

log = structlog.get_logger(__name__)


class SplitAlarm:
    """An observer of decisions. `has_roles`: whether any member of the pool has a role."""

    def __init__(self, *, has_roles: Callable[[], bool], clock: Callable[[], float]) -> None:
        self._has_roles = has_roles
        self._clock = clock
        self._next = float("-inf")
        self._requests = 0

    def decided(self, decision: Decision, request: Request, why: str, took_s: float) -> None:
        if decision.split != _NOBODY:
            return
        self._requests += 1
        now = self._clock()
        if now < self._next:
            return
        self._next = now + QUIET_S
        if self._has_roles():
            log.warning(
                "nobody to prefill: no ready endpoint has a role for it",
                requests=self._requests,
                do="look at the roles and the readiness of /debug/endpoints",
            )
        self._requests = 0

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
