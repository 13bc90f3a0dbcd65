"""What must happen by when in one handoff: one timer of the loop for all its limits."""

import asyncio
from collections.abc import Callable

NEVER = float("inf")


class Times:
    """Limits by name. One that is put off costs nothing: the timer is set anew when it rings."""

    __slots__ = ("_at", "_due", "_loop", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: dict[str, tuple[float, Callable[[], object]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._at = NEVER  # when the timer rings

    def set(self, name: str, within_s: float, call: Callable[[], object]) -> None:
        """Call this in so many seconds, in the place of what the name stood for."""
        at = self._loop.time() + within_s
        self._due[name] = (at, call)
        if at < self._at:
            self._arm(at)

    def drop(self, name: str) -> None:
        self._due.pop(name, None)

    def stop(self) -> None:
        """Nothing is called any more."""
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._at = at
        self._timer = self._loop.call_at(at, self._ring)

    def _ring(self) -> None:
        self._timer, self._at = None, NEVER
        now = self._loop.time()
        for name in [name for name, (at, _) in self._due.items() if at <= now]:
            due = self._due.pop(name, None)
            if due is not None:
                due[1]()
        if self._due:
            first = min(at for at, _ in self._due.values())
            if first < self._at:
                self._arm(first)
