"""The loop of one ext_proc stream: messages to the pure stream, its actions to the gateway.

At most one read and one decision are under way at any time, and a decision runs beside the reading,
so that a gateway that gives up, or answers by itself, is noticed while it is still out.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from grpc import aio

from epp.request.actions import Abort, Action, Decide, Finish, Send
from epp.request.exchange import Arrival, Outcome, Route
from epp.request.stream import Stream

from .limits import StreamCounts
from .patience import BodyPace, Patience

Context = aio.ServicerContext[bytes, bytes]
Deciding = Callable[[Arrival], Coroutine[Any, Any, Outcome | Abort]]

_STALLED = object()
"""Read instead of a message: none came for too long."""


class Conversation:
    """One stream and the gateway at its other end."""

    def __init__(
        self,
        stream: Stream,
        context: Context,
        decide: Deciding,
        counts: StreamCounts,
        pace: BodyPace,
    ) -> None:
        self._stream = stream
        self._context = context
        self._decide = decide
        self._counts = counts
        self._pace = pace
        self._patience: Patience | None = None
        self._deciding: asyncio.Task[Outcome | Abort] | None = None
        self._reading: asyncio.Task[Any] | None = None
        self._read_all = False

    async def run(self) -> Finish | Abort:
        """Talk until the stream is over; gives how it is to be ended."""
        async with asyncio.TaskGroup() as tasks:
            ending = None
            while ending is None:
                ending = await self._step(tasks)
            for task in (self._reading, self._deciding):
                if task is not None:
                    task.cancel()
        return ending

    def let_go(self) -> None:
        """After the end: an outcome that came too late gives back what it reserved."""
        task = self._deciding
        if task is not None and task.done() and not task.cancelled():
            outcome = task.result()
            if not isinstance(outcome, Abort):
                self._counts.late += 1
                self._stream.decided(outcome)

    async def _step(self, tasks: asyncio.TaskGroup) -> Finish | Abort | None:
        """Take the next message or the decision, whichever comes first."""
        if self._deciding is not None:
            if self._reading is None and not self._read_all:
                # A pending read is never cancelled while the stream lives: its message would
                # be lost. It is awaited below once the decision is out.
                self._reading = tasks.create_task(self._context.read())
            waiting = [task for task in (self._reading, self._deciding) if task is not None]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if self._deciding.done():
                return await self._answer(self._deciding, tasks)
        message = await self._next()
        if message is _STALLED:
            return await self._perform(self._stream.stalled(), tasks)
        if message is aio.EOF:
            self._read_all = True
            return await self._perform(self._stream.half_closed(), tasks)
        return await self._perform(self._stream.receive(message), tasks)

    async def _next(self) -> Any:
        """The next message. While a body is being collected, _STALLED when it is too slow."""
        reading, self._reading = self._reading, None
        collected = self._stream.collected
        if collected is None:
            return await (reading or self._context.read())
        now = asyncio.get_running_loop().time()
        if self._patience is None:
            self._patience = Patience(self._pace, now)
        self._patience.saw(collected, now)
        try:
            # The stream ends with its patience, so a read that is cut off loses nothing.
            async with asyncio.timeout_at(self._patience.until):
                return await (reading or self._context.read())
        except TimeoutError:
            return _STALLED

    async def _answer(
        self, deciding: asyncio.Task[Outcome | Abort], tasks: asyncio.TaskGroup
    ) -> Finish | Abort | None:
        self._deciding = None
        outcome = deciding.result()
        if isinstance(outcome, Abort):
            return outcome
        actions = self._stream.decided(outcome)
        if not actions:
            self._counts.late += 1
        elif isinstance(outcome, Route):
            self._counts.routed += 1
        ending = await self._perform(actions, tasks)
        self._stream.written()
        return ending

    async def _perform(
        self, actions: Sequence[Action], tasks: asyncio.TaskGroup
    ) -> Finish | Abort | None:
        if actions and isinstance(actions[-1], Finish) and actions[-1].refused:
            # Counted before it is sent: gateways cut the stream as soon as they have a refusal.
            self._counts.refuse(actions[-1].refused)
        for action in actions:
            if isinstance(action, Send):
                await self._context.write(action.data)
            elif isinstance(action, Decide):
                self._deciding = tasks.create_task(self._decide(action.arrival))
            else:
                return action
        return None
