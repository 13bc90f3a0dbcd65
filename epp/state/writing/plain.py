"""Writes for one engine that has no sidecar: its KV events become records, as a sidecar's would.

Its life is read from the metrics pages that the picker reads anyway, and its base model's name from
its page of models; nothing is said of its load, which every replica reads itself.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from random import Random

import zmq.asyncio

from epp.framework import EndpointId
from epp.state.blocks import Naming
from epp.state.event_ports import EventSource
from epp.state.events import Frame
from epp.state.records import EngineStatus
from epp.state.store import Writer
from epp.state.subscriber import EventSubscriber

from .cache import CacheMirror
from .chronicle import Chronicle
from .following import Following
from .life import Life
from .publisher import Publisher, Tempo, Wrote

ASK_S = 1.0
"""Between two questions for the name of its model, while it does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What all writers of a pool work with."""

    open_writer: Callable[[], Writer]
    ask_model: Callable[[str], Awaitable[str | None]]
    """The base model of the engine at `ip:port`; None where it does not tell."""
    fetch: Callable[[str, int], AsyncGenerator[Frame, None]]
    """Asks for a replay; see `replaying`."""
    context: zmq.asyncio.Context
    """Of all subscribers together."""
    naming: Naming
    count: Callable[[Wrote], None]
    clock: Callable[[], float]
    wall_ms: Callable[[], int]
    rng: Random
    tempo: Tempo


class PlainWriter:
    """Speaks for one engine. `run` in a task."""

    def __init__(
        self,
        endpoint: EndpointId,
        address: str,
        source: EventSource,
        means: Means,
        *,
        known_ms: int,
    ) -> None:
        """`known_ms`: start of the engine's life as far as the pool knows; 0: it does not."""
        self.source = source
        self.address = address
        self._means = means
        mirror = partial(
            CacheMirror,
            naming=means.naming,
            replays=source.replay is not None,
            rank=source.rank,
            clock=means.clock,
        )
        self._chronicle = Chronicle(mirror, Life(known_ms), str(endpoint))
        self._model: str | None = None
        self._model_known = asyncio.Event()
        self._came = asyncio.Event()
        recalled = asyncio.Event()
        self._publisher = Publisher(
            endpoint,
            means.tempo,
            outbox=self._chronicle.outbox,
            kept=self._chronicle.kept,
            resume=self._chronicle.resume,
            recalled=recalled,
            status=self._status,
            start_ms=self._chronicle.start_ms,
            open_writer=means.open_writer,
            count=means.count,
            clock=means.clock,
            rng=means.rng,
        )
        self._chronicle.wake = self._publisher.wake
        self._recalled = recalled

    @property
    def mirror(self) -> CacheMirror:
        """What the engine holds, for its counters."""
        return self._chronicle.mirror

    @property
    def writes(self) -> bool:
        """Whether our claim stands."""
        return self._publisher.stands

    def page(self, start_ms: int | None) -> None:
        """Its metrics page was read; `start_ms` where that tells when it started."""
        is_new_life = self._chronicle.life.seen(start_ms, self._means.wall_ms())
        self._chronicle.engine_page(is_new_life=is_new_life)
        if is_new_life:
            self._came.set()

    def refused(self) -> None:
        """Its port refuses connections: that life is over."""
        self._chronicle.life.lost()

    async def run(self) -> None:
        """Write until cancelled. Raises SubscribeError for a source that is none."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._publisher.run())
            tasks.create_task(self._name_models())
            tasks.create_task(self._follow())

    async def _follow(self) -> None:
        source, means = self.source, self._means
        subscriber = EventSubscriber(
            source.events, bind=False, topic=source.topic, context=means.context
        )
        following = Following(subscriber, self._chronicle, replay=source.replay, fetch=means.fetch)
        await following.run(self._model_known, self._recalled)

    async def _name_models(self) -> None:
        """Each life may serve another model: until it is known whose, no block is named."""
        while True:
            await self._came.wait()
            self._came.clear()
            model = await self._means.ask_model(self.address)
            while model is None and not self._came.is_set():
                await asyncio.sleep(ASK_S)
                model = await self._means.ask_model(self.address)
            if model is not None and model != self._model:
                self._model = model
                self._chronicle.engine_model(model)
                self._model_known.set()

    def _status(self) -> EngineStatus:
        mirror = self._chronicle.mirror
        return EngineStatus(ready=True, events=mirror.sees_events, partial=mirror.partial)
