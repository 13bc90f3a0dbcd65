"""Ask plugins, and go on without one that fails.

A plugin that raises, answers nonsense or takes too long loses its vote on this one request; the
others decide. Each failure is counted by plugin and reason. The log has a line about a plugin every
ten seconds at most, without the exception's own words, which may quote a request.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

import structlog

from epp.framework import NoCourse

LIMIT_S = 0.02
"""CPU time of one call. A decision has 0.2 s, and everybody else waits meanwhile."""
WAIT_S = 0.2
"""Time of one call by the clock on the wall. The machine's other work may take some of it, so that
it is longer; what takes that long waits for something, which no plugin may."""
QUIET_S = 10.0

T = TypeVar("T")

log = structlog.get_logger(__name__)


class Why(StrEnum):
    """The reason in `epp_plugin_failures_total`."""

    RAISED = "raised"
    SLOW = "slow"
    WRONG_SHAPE = "wrong-shape"
    """Not one number, or yes or no, for each candidate; or rows that there are not."""
    NOT_FINITE = "not-finite"
    OUT_OF_RANGE = "out-of-range"
    """A score below 0 or above 1. It is clamped, and counts."""
    NO_WORD = "no-word"
    """A decider's answer that is not a short word, or a header that cannot be one."""


class Ballot:
    """Owned by the director. Belongs to one event loop."""

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        cpu: Callable[[], float],
        failed: Callable[[str, str], None] = lambda plugin, why: None,
    ) -> None:
        """`clock`: monotonic seconds. `cpu`: seconds of CPU of this thread, so that a plugin does
        not pay for what else the machine does. `failed` is told plugin and reason."""
        self._clock = clock
        self._cpu = cpu
        self._failed = failed
        self._quiet: dict[str, float] = {}
        self._began = cpu()

    def begin(self) -> None:
        """Plugins are about to be asked. To ask for the CPU's time before and after each of them
        would cost more than most plugins do."""
        self._began = self._cpu()

    def ask(self, plugin: str, call: Callable[[], T]) -> T | None:
        """Its answer, or None where it has lost its vote. Raises NoCourse if the plugin does."""
        asked = self._clock()
        try:
            answer = call()
        except NoCourse:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a stranger's code raises
            self.blame(plugin, Why.RAISED, kind=type(error).__name__)
            return None
        if self._clock() - asked > LIMIT_S and self._is_to_blame(asked):
            self.blame(plugin, Why.SLOW)
            return None
        return answer

    def tell(self, plugin: str, call: Callable[[], object]) -> None:
        """Let it know something; what it makes of that is its own business."""
        self.ask(plugin, call)

    def _is_to_blame(self, asked: float) -> bool:
        """Whether it was the plugin itself that took so long."""
        computed = self._cpu() - self._began
        self.begin()
        return computed > LIMIT_S or self._clock() - asked > WAIT_S

    def blame(self, plugin: str, why: Why, **told: object) -> None:
        """Count a failure, and log it if nothing was logged of this plugin lately."""
        self._failed(plugin, why)
        now = self._clock()
        if now < self._quiet.get(plugin, now):
            return
        self._quiet[plugin] = now + QUIET_S
        log.warning("plugin lost its vote", plugin=plugin, why=str(why), **told)
