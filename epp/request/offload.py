"""Keep long computations off the event loop.

Bodies of a megabyte take milliseconds to parse and hash; on the event loop they would hold up every
stream and the health probe (fault A20). Small ones run at once: a thread costs more than they do.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from types import TracebackType
from typing import TypeVar

from epp.errors import EppError

T = TypeVar("T")

INLINE_BYTES = 64 * 1024
"""Work on fewer bytes takes well under a millisecond."""


class BusyError(EppError):
    """Too many long computations wait already; decide without this one."""

    reason = "busy"


class Offload:
    """A thread behind a bounded queue.

    One, because all of this work holds the interpreter's lock: more would only make the event loop
    wait for more of them in turn.
    """

    def __init__(self, *, workers: int = 1, max_pending: int = 64) -> None:
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="epp-offload")
        self._max_pending = max_pending
        self._lock = Lock()
        self.pending = 0
        self.refused = 0

    async def run(self, size: int, work: Callable[[], T]) -> T:
        """The result of `work` over `size` bytes. Raises BusyError, and whatever `work` raises.

        A caller that stops waiting does not stop a computation that has begun.
        """
        if size <= INLINE_BYTES:
            return work()
        if self.pending >= self._max_pending:
            self.refused += 1
            raise BusyError
        with self._lock:
            self.pending += 1
        future = self._threads.submit(work)
        future.add_done_callback(self._ended)
        return await asyncio.wrap_future(future)

    def _ended(self, _: object) -> None:
        """Called by the thread that ran it, or by whoever cancelled it before it began."""
        with self._lock:
            self.pending -= 1

    def __enter__(self) -> "Offload":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
