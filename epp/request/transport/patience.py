"""How long a picker waits for a request's body. Pure: the caller says what time it is.

A body has to keep moving, and has to move at a human pace (fault G13). Otherwise 500 clients that
send a byte a second would hold 500 streams for days, and no single read would ever look late.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyPace:
    """The slowest body that is waited for. The defaults let a phone on a bad line pass."""

    idle_s: float = 30.0
    """Longest silence, and what every body may take whatever its size."""
    bytes_per_s: float = 1_000.0
    """Beyond that, a body has a second for each so many bytes of it."""


@dataclass(slots=True)
class Patience:
    """The wait for one body, which begins at `began` (seconds of the caller's clock)."""

    pace: BodyPace
    began: float
    _bytes: int = field(default=0, init=False)
    _last: float = field(init=False)

    def __post_init__(self) -> None:
        self._last = self.began

    def saw(self, collected: int, now: float) -> None:
        """So many bytes of the body are here by `now`. Only more of them are progress."""
        if collected > self._bytes:
            self._bytes = collected
            self._last = now

    @property
    def until(self) -> float:
        """When the wait is over, unless more comes."""
        idle = self.pace.idle_s
        earned = self._bytes / self.pace.bytes_per_s
        return min(self._last + idle, self.began + idle + earned)
