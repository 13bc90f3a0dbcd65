"""Tells a `Listener` of answers that an upstream gives to whoever waits for them."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from .client import Answer, Listener


class Pumped:
    """One request under way, in a task of its own. An `Asked`."""

    __slots__ = ("_dropped", "_listener", "_more", "_task")

    def __init__(self, sending: Coroutine[Any, Any, Answer], listener: Listener) -> None:
        self._listener = listener
        self._dropped = False
        self._more = asyncio.Event()
        self._more.set()
        self._task = asyncio.get_running_loop().create_task(self._pump(sending))

    def read_on(self, reads: bool, /) -> None:
        if reads:
            self._more.set()
        else:
            self._more.clear()

    def drop(self) -> None:
        self._dropped = True
        self._task.cancel()

    async def _pump(self, sending: Coroutine[Any, Any, Answer]) -> None:
        try:
            answer = await sending
            try:
                await self._told(answer)
            finally:
                answer.close()
        except Exception as error:  # noqa: BLE001 - edge of the task: the listener gets it
            if not self._dropped:
                self._listener.fail(error)
            return
        if not self._dropped:
            self._listener.end()

    async def _told(self, answer: Answer) -> None:
        self._listener.begin(answer.head)
        while piece := await answer.next():
            if self._dropped:
                return
            self._listener.piece(piece)
            await self._more.wait()
