"""Which steps from line to line a run takes inside the modules under test.

`sys.settrace` needs no compiler and is the same on every Python that we support. Only functions of
the watched files are followed line by line; all others run at full speed.
"""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

Edge = tuple[CodeType, int, int]


class Edges:
    """Watches files whose path begins with one of `roots`, and remembers every edge it saw."""

    def __init__(self, roots: Iterable[Path]) -> None:
        self._roots = tuple(map(str, roots))
        self._watched: dict[CodeType, bool] = {}
        self._last: dict[FrameType, int] = {}
        self._run: set[Edge] = set()
        self.seen: set[Edge] = set()

    def new(self, work: Callable[[], object]) -> int:
        """Edges of this run that no earlier run took. Raises what `work` raises."""
        self._run.clear()
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            work()
        finally:
            sys.settrace(before)
            self._last.clear()
        found = len(self._run - self.seen)
        self.seen |= self._run
        return found

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        watched = self._watched.get(code)
        if watched is None:
            watched = self._watched[code] = code.co_filename.startswith(self._roots)
        if not watched:
            return None
        self._last[frame] = 0
        return self._step

    def _step(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            line = frame.f_lineno
            self._run.add((frame.f_code, self._last.get(frame, 0), line))
            self._last[frame] = line
        elif event == "return":
            self._last.pop(frame, None)
        return self._step
