"""Runs the engine core in real time: one task steps it, requests read what it puts in their feeds.

An idle engine sleeps on an event and costs no CPU.
"""

import asyncio
from collections.abc import Callable, Sequence

from epp.errors import EppError
from epp.sim.engine import Engine
from epp.sim.kv import KvEvent
from epp.sim.settings import CoreSettings
from epp.sim.submission import Output, Submission

Clock = Callable[[], float]
"""Monotonic seconds."""
Publish = Callable[[Sequence[KvEvent]], None]


class Feed:
    """The outputs of one HTTP request, which may have several sequences."""

    def __init__(self, submissions: Sequence[Submission]) -> None:
        self.sequences = {one.id: index for index, one in enumerate(submissions)}
        """Position of each sequence by its id."""
        room = sum(one.max_tokens for one in submissions) + 1
        self._queue: asyncio.Queue[Output | None] = asyncio.Queue(room)

    def put(self, output: Output | None) -> None:
        """Never full: there is room for every token that was asked for, and one end."""
        self._queue.put_nowait(output)

    async def next(self) -> Output | None:
        """Wait for a token; None says that the engine died under the request."""
        return await self._queue.get()


class Driver:
    """One engine in real time. All calls come from the event loop's thread."""

    def __init__(self, settings: CoreSettings, *, clock: Clock, publish: Publish) -> None:
        self._settings = settings
        self._clock = clock
        self._publish = publish
        self._feeds: dict[str, Feed] = {}
        self._wake = asyncio.Event()
        self.engine = Engine(settings)

    def submit(self, submissions: Sequence[Submission]) -> Feed:
        """Queue the sequences of one request, all or none; raises what `Engine.admit` raises."""
        feed = Feed(submissions)
        now = self._clock()
        try:
            for one in submissions:
                self.engine.admit(one, now)
                self._feeds[one.id] = feed
        except (EppError, ValueError):
            self.leave(feed)
            raise
        self._wake.set()
        return feed

    def leave(self, feed: Feed) -> None:
        """Abort whatever still runs for a request; harmless once it has ended."""
        for name in feed.sequences:
            if self._feeds.pop(name, None) is not None:
                self.engine.abort(name)

    def restart(self) -> None:
        """A new life: an empty engine, and every request of the old one is dead."""
        self.engine = Engine(self._settings)
        feeds = dict.fromkeys(self._feeds.values())
        self._feeds.clear()
        for feed in feeds:
            feed.put(None)

    def flush(self) -> None:
        """Publish what happened to the cache outside of a step."""
        self._send(self.engine.pool.take_events())

    async def run(self) -> None:
        """Step for ever; the owner cancels."""
        while True:
            step = self.engine.step(self._clock())
            self._send(step.events)
            for output in step.outputs:
                self._deliver(output)
            if step.next_at is None:
                self._wake.clear()
                await self._wake.wait()
            else:
                await asyncio.sleep(max(0.0, step.next_at - self._clock()))

    def _send(self, events: Sequence[KvEvent]) -> None:
        if events:
            self._publish(events)

    def _deliver(self, output: Output) -> None:
        feed = self._feeds[output.id]
        if output.finish is not None:
            del self._feeds[output.id]
        feed.put(output)
