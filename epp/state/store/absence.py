"""Tells of a log that is away: why, at most once a minute, and when it is there again.

Whoever uses the log tries again many times a second; a line for each would bury what else is told.
"""

from collections.abc import Callable

import structlog

QUIET_S = 60.0
"""At most one line in this time that the log is away."""

log = structlog.get_logger(__name__)


class Absence:
    """Of one way to the log. `clock` counts seconds; `of` names the way in each line."""

    def __init__(self, clock: Callable[[], float], **of: object) -> None:
        self._clock = clock
        self._of = of
        self._since: float | None = None
        """When it went; None while it is there."""
        self._next_at = float("-inf")
        self._told = False
        """Somebody was told of this absence."""

    def failed(self, why: str) -> None:
        """A try failed. `why` has no secrets."""
        now = self._clock()
        if self._since is None:
            self._since = now
        if now >= self._next_at:
            self._next_at = now + QUIET_S
            self._told = True
            for_s = round(now - self._since, 1)
            log.warning("the log is away", reason=why, for_s=for_s, **self._of)

    def answered(self) -> None:
        """A try went well."""
        if self._since is not None and self._told:
            after_s = round(self._clock() - self._since, 1)
            log.info("the log answers again", after_s=after_s, **self._of)
        self._since, self._told = None, False
