"""Gives up an exchange in which no byte moves, or that lasts too long."""

import asyncio
from types import TracebackType
from typing import Self


class Idle:
    """A context that ends its task with TimeoutError after `limit_s` without a `touch`.

    A touch costs one reading of the clock: the timer is set anew only when it has run out.
    `too_long` says that it was `total_s` that was reached.
    """

    __slots__ = ("_cancelling", "_ends", "_expired", "_limit_s", "_loop", "_moved", "_task",
                 "_timer", "too_long")  # fmt: skip

    def __init__(self, limit_s: float, total_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._limit_s = limit_s
        self._moved = self._loop.time()
        self._ends = self._moved + total_s
        self._expired = False
        self.too_long = False

    def touch(self) -> None:
        """A byte moved."""
        self._moved = self._loop.time()

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self._timer = self._loop.call_at(self._next(), self._over)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if not self._expired:
            return
        others = self._task.uncancel() > self._cancelling
        if kind is not None and issubclass(kind, asyncio.CancelledError) and not others:
            raise TimeoutError from error

    def _next(self) -> float:
        return min(self._moved + self._limit_s, self._ends)

    def _over(self) -> None:
        at = self._next()
        if self._loop.time() < at:
            self._timer = self._loop.call_at(at, self._over)
            return
        self._expired = True
        self.too_long = at == self._ends
        self._task.cancel()
