"""Passes an answer on to its client as an engine's connection tells of it, one call for each piece.

What a client is slow to take is waited for in order: the engine is not read on meanwhile, and what
it has sent already waits here.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator

from .client import Head, NearClient, Wait
from .passage import Passage

Step = Callable[[], Wait]


class Outflow:
    """One answer. `open` or `whole` it once; nothing follows `over`, `broken` or `stop`."""

    __slots__ = (
        "_broken",
        "_over",
        "_passage",
        "_read_on",
        "_steps",
        "_stopped",
        "_task",
        "_waits",
    )  # fmt: skip

    def __init__(
        self,
        passage: Passage,
        *,
        read_on: Callable[[bool], object],
        over: Callable[[], object],
        broken: Callable[[Exception], object],
    ) -> None:
        """`over` is called when the client's connection has taken all of it, `broken` when it takes
        no more (ConnectionError), or with a failure of our own."""
        self._passage = passage
        self._read_on = read_on
        self._over = over
        self._broken = broken
        self._steps: deque[Step] = deque()
        self._waits = False
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def open(self, head: Head) -> None:
        self._do(lambda: self._passage.open(head))

    def take(self, data: bytes) -> None:
        if self._waits:
            self._steps.append(lambda: self._passage.take(data))
            return
        try:
            wait = self._passage.take(data)
        except Exception as error:  # noqa: BLE001 - edge of a callback
            self._fail(error)
            return
        if wait is not None:
            self._after(wait)

    def chunk(self, data: bytes, size: int) -> bool:
        """The same for a whole chunk as it came; False when it has to be taken piece by piece."""
        if self._waits:
            return False
        try:
            wait = self._passage.chunk(data, size)
        except Exception as error:  # noqa: BLE001 - edge of a callback
            self._fail(error)
            return True
        if wait is False:
            return False
        if wait is not None:
            self._after(wait)
        return True

    def end(self) -> None:
        """The answer is complete."""
        self._do(lambda: self._closed(self._passage.closing()))

    def whole(self, head: Head, body: bytes, to: NearClient | None) -> None:
        """All of an answer at once. `to` is the client, if it takes bytes as they go over the
        wire."""
        if to is None:
            self.open(head)
            self.take(body)
            self.end()
            return
        try:
            wait = self._passage.at_once(head, body, to)
        except Exception as error:  # noqa: BLE001 - edge of a callback
            self._fail(error)
            return
        if wait is None:
            self._over()
            return
        self._steps.append(lambda: self._closed(iter(())))
        self._after(wait)

    def stop(self) -> None:
        """Nobody wants the rest."""
        self._stopped = True
        self._steps.clear()
        if self._task is not None:
            self._task.cancel()

    # ---

    def _closed(self, closing: Iterator[Wait]) -> Wait:
        for wait in closing:
            if wait is not None:
                self._steps.appendleft(lambda: self._closed(closing))
                return wait
        self._over()
        return None

    def _do(self, step: Step) -> None:
        if self._stopped:
            return
        if self._waits:
            self._steps.append(step)
            return
        try:
            wait = step()
        except Exception as error:  # noqa: BLE001 - edge of a callback
            self._fail(error)
            return
        if wait is not None:
            self._after(wait)

    def _fail(self, error: Exception) -> None:
        self.stop()
        self._broken(error)

    def _after(self, wait: Wait) -> None:
        """Go on when the client's connection has room again."""
        assert wait is not None
        if not isinstance(wait, asyncio.Future):
            assert isinstance(wait, Coroutine)
            wait = self._task = asyncio.get_running_loop().create_task(wait)
        self._waits = True
        self._read_on(False)
        wait.add_done_callback(self._go_on)

    def _go_on(self, waited: "asyncio.Future[None]") -> None:
        self._waits, self._task = False, None
        if self._stopped or waited.cancelled():
            return
        error = waited.exception()
        if isinstance(error, Exception):
            self._fail(error)
            return
        while self._steps and not (self._waits or self._stopped):
            self._do(self._steps.popleft())
        if not (self._waits or self._stopped):
            self._read_on(True)
