"""Follows one engine's KV events: live ones, and replays where the mirror wants one."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from typing import Protocol

import structlog

from epp.state.events import Frame
from epp.state.replaying import ReplayError, fetch
from epp.state.sequence import Replay
from epp.state.subscriber import EventSubscriber

LOOK_S = 0.25
"""Between two looks whether a replay is wanted, where no message is a reason to look."""

log = structlog.get_logger(__name__)


class Taker(Protocol):
    """Who takes the messages. Calls return at once and never fail."""

    @property
    def wanted(self) -> Replay | None:
        """The replay that should be fetched at present."""

    def start_ms(self) -> int:
        """The engine's present life; 0 while it has not been seen."""

    def look(self) -> None: ...

    def frame(self, frame: Frame) -> None: ...

    def replayed(self, frame: Frame) -> None: ...

    def replay_ended(self, *, complete: bool) -> None: ...


class Following:
    """The events of one engine. `run` in a task, once the engine's model is known."""

    def __init__(
        self,
        subscriber: EventSubscriber,
        taker: Taker,
        *,
        replay: str | None,
        fetch: Callable[[str, int], AsyncGenerator[Frame, None]] = fetch,
    ) -> None:
        self._taker = taker
        self._subscriber = subscriber
        self._replay = replay
        self._fetch = fetch
        self._news = asyncio.Event()

    @property
    def endpoint(self) -> str:
        """Where events are expected; tells the port when bound to port 0."""
        return self._subscriber.endpoint

    @property
    def damaged(self) -> int:
        """Messages that were none."""
        return self._subscriber.damaged

    async def run(self, *ready: asyncio.Event) -> None:
        """Follow until cancelled. Until all are `ready` messages wait in the socket's own queue.

        Should the engine restart meanwhile, nobody could tell which of them are of the life before:
        they are left unread.
        """
        while True:
            life = self._taker.start_ms()
            async with self._subscriber:
                for event in ready:
                    await event.wait()
                if life in {0, self._taker.start_ms()}:
                    await self._follow()

    async def _follow(self) -> None:
        async with asyncio.TaskGroup() as tg:
            if self._replay is not None:
                tg.create_task(self._replays(self._replay))
            async for frame in self._subscriber:
                self._taker.frame(frame)
                self._news.set()

    async def _replays(self, endpoint: str) -> None:
        while True:
            self._taker.look()
            wanted = self._taker.wanted
            if wanted is not None:
                await self._one_replay(endpoint, wanted)
                continue
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._news.wait()

    async def _one_replay(self, endpoint: str, wanted: Replay) -> None:
        try:
            async with aclosing(self._fetch(endpoint, wanted.start)) as frames:
                async for frame in frames:
                    if self._taker.wanted is not wanted:
                        return
                    self._taker.replayed(frame)
        except ReplayError as error:
            log.warning("a replay of KV events failed", at=endpoint, why=str(error))
            complete = False
        else:
            complete = True
        if self._taker.wanted is wanted:
            self._taker.replay_ended(complete=complete)
