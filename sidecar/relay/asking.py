"""Requests whose answers a `Listener` is told: how they come by a connection."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from sidecar.http.client import Call, Head, Listener
from sidecar.http.refusals import ENGINE_LOST, LegError

from .engines import EngineConnection

Connecting = Coroutine[Any, Any, EngineConnection]


class Coming:
    """One that waits for a new connection, and goes over it. An `Asked`."""

    __slots__ = ("_call", "_dropped", "_line", "_listener", "_reads", "_task")

    def __init__(self, connecting: Connecting, listener: Listener, call: Call) -> None:
        self._listener = listener
        self._call = call
        self._reads = True
        self._dropped = False
        self._line: EngineConnection | None = None
        self._task = asyncio.get_running_loop().create_task(connecting)
        self._task.add_done_callback(self._came)

    def _came(self, task: "asyncio.Task[EngineConnection]") -> None:
        if task.cancelled():
            return  # it was dropped
        error = task.exception()
        if error is None and self._dropped:
            task.result().drop()
        elif error is None:
            line = self._line = task.result()
            line.ask_for(self._listener, self._call)
            line.read_on(self._reads)
        else:
            assert isinstance(error, Exception)
            self._listener.fail(error)

    def read_on(self, reads: bool, /) -> None:
        self._reads = reads
        if self._line is not None:
            self._line.read_on(reads)

    def drop(self) -> None:
        self._dropped = True
        self._task.cancel()
        if self._line is not None:
            self._line.drop()


class Repeating:
    """One over a connection that was used before. When that turns out dead before any byte of the
    answer, the request is sent once more (fault D15). An `Asked`, and its own listener."""

    __slots__ = ("_again", "_asked", "_call", "_line", "_listener")

    def __init__(
        self,
        line: EngineConnection,
        listener: Listener,
        call: Call,
        again: Callable[[Listener, Call], Coming],
    ) -> None:
        self._line = line
        self._asked: EngineConnection | Coming = line
        self._listener = listener
        self._call = call
        self._again = again
        line.ask_for(self, call)

    def read_on(self, reads: bool, /) -> None:
        self._asked.read_on(reads)

    def drop(self) -> None:
        self._asked.drop()

    # --- what the connection tells

    def begin(self, head: Head) -> None:
        self._listener.begin(head)

    def piece(self, data: bytes) -> None:
        self._listener.piece(data)

    def chunk(self, data: bytes, size: int) -> bool:
        return self._listener.chunk(data, size)

    def whole(self, head: Head, body: bytes) -> None:
        self._listener.whole(head, body)

    def end(self) -> None:
        self._listener.end()

    def fail(self, error: Exception) -> None:
        lost = isinstance(error, LegError) and error.refused is ENGINE_LOST
        if lost and self._line.silent:
            self._asked = self._again(self._listener, self._call)
        else:
            self._listener.fail(error)
