"""When did this life of the engine begin? Pure.

`process_start_time_seconds` of the engine says so. An engine without it gets the wall clock of the
moment at which it was first seen, and a new life whenever there was a sign that it went away.
"""


class Life:
    """The engine's present life. Starts only ever rise, whatever clocks do."""

    __slots__ = ("_floor_ms", "_lost", "_reported_ms", "start_ms")

    def __init__(self, floor_ms: int = 0) -> None:
        """`floor_ms`: start of a life that others have seen. What began at that very moment is the
        same life; one whose start nobody tells is another."""
        self.start_ms = 0
        """Milliseconds of Unix time; 0 until the engine has been seen."""
        self._floor_ms = floor_ms
        self._reported_ms: int | None = None
        self._lost = False

    def lost(self) -> None:
        """A sign that this life is over: its port refuses, or its event sequence fell."""
        self._lost = True

    def seen(self, reported_ms: int | None, now_ms: int) -> bool:
        """The engine answered, perhaps saying when it started. Returns True for a new life."""
        if reported_ms is None:
            is_new = self.start_ms == 0 or self._lost
            began = max(now_ms, self._floor_ms + 1)
        else:
            is_new = self.start_ms == 0 or (
                self._lost if self._reported_ms is None else reported_ms != self._reported_ms
            )
            began = reported_ms if reported_ms >= self._floor_ms else self._floor_ms + 1
            self._reported_ms = reported_ms
        self._lost = False
        if is_new:
            self.start_ms = max(began, self.start_ms + 1)
        return is_new
