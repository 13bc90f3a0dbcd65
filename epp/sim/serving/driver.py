"""Runs the engine core in real time: one task steps it, requests read what it puts in their feeds.

An idle engine sleeps on an event and costs no CPU. Every life of the engine has an id of its own,
by which other engines know whether blocks that they were offered can still exist.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

from epp.errors import EppError
from epp.sim.engine import Engine
from epp.sim.hashing import Content
from epp.sim.kv import KvEvent
from epp.sim.settings import CoreSettings
from epp.sim.submission import Output, Pull, Step, Submission

Clock = Callable[[], float]
"""Monotonic seconds."""
Publish = Callable[[Sequence[KvEvent]], None]
Carry = Callable[[Engine, Step], None]
"""Carries out the pulls and returns of a step of this engine."""


class Lost(Enum):
    """Why no further token of a request will come."""

    RESTARTED = "restarted"
    DEAD = "dead"
    PULL_FAILED = "pull-failed"


@dataclass(slots=True)
class Life:
    """Of an engine; `over` once it has restarted."""

    over: bool = False


class Feed:
    """The outputs of one HTTP request, which may have several sequences."""

    def __init__(self, submissions: Sequence[Submission], life: Life) -> None:
        self._life = life
        self.sequences = {one.id: index for index, one in enumerate(submissions)}
        """Position of each sequence by its id."""
        room = sum(one.max_tokens for one in submissions) + len(submissions)
        self._queue: asyncio.Queue[Output | Lost] = asyncio.Queue(room)

    def put(self, output: Output | Lost) -> None:
        """Never full: there is room for every token that was asked for, and an end of each."""
        self._queue.put_nowait(output)

    async def next(self) -> Output | Lost:
        """Wait for a token, or for the reason why there will be none. What a process had not said
        when it ended it never says: least of all where its blocks are."""
        said = await self._queue.get()
        return Lost.RESTARTED if self._life.over else said


class Driver:
    """One engine in real time. All calls come from the event loop's thread."""

    def __init__(
        self,
        settings: CoreSettings,
        *,
        clock: Clock,
        publish: Publish,
        new_id: Callable[[], str],
        carry: Carry = lambda engine, step: None,
        died: Callable[[], None] = lambda: None,
    ) -> None:
        """`new_id` names a life of the engine; `died` hears that it died of a request."""
        self._settings = settings
        self._clock = clock
        self._publish = publish
        self._new_id = new_id
        self._carry = carry
        self._died = died
        self._buried = False
        self._feeds: dict[str, Feed] = {}
        self._life = Life()
        self._wake = asyncio.Event()
        self.engine = Engine(settings)
        self.engine_id = new_id()

    def submit(self, submissions: Sequence[Submission]) -> Feed:
        """Queue the sequences of one request, all or none; raises what `Engine.admit` raises."""
        feed = Feed(submissions, self._life)
        now = self._clock()
        try:
            for one in submissions:
                self.engine.admit(one, now)
                self._feeds[one.id] = feed
        except (EppError, ValueError):
            self.leave(feed)
            raise
        finally:
            self._wake.set()
        return feed

    def leave(self, feed: Feed) -> None:
        """Abort whatever still runs for a request; harmless once it has ended."""
        for name in feed.sequences:
            if self._feeds.pop(name, None) is not None:
                self.engine.abort(name)
                self._wake.set()

    def restart(self) -> None:
        """A new life: an empty engine, and every request of the old one is dead."""
        self.engine = Engine(self._settings)
        self.engine_id = self._new_id()
        self._life.over, self._life = True, Life()
        self._buried = False
        self._lose(Lost.RESTARTED)
        self._wake.set()

    def pulled(self, engine: Engine, pull: Pull, contents: Sequence[Content] | None) -> None:
        """A pull has ended; None says that it failed. A former life's is ignored."""
        if engine is self.engine:
            if contents is None:
                engine.pull_failed(pull)
            else:
                engine.pulled(pull, contents)
            self._wake.set()

    def read(self, request_id: str, blocks: Sequence[int]) -> list[Content]:
        """Let another engine read blocks; raises what `Pins.read` raises."""
        self._wake.set()
        return self.engine.pins.read(request_id, blocks)

    def take_back(self, request_id: str) -> None:
        """Another engine will not read its blocks."""
        self._wake.set()
        self.engine.pins.hand_back(request_id)

    def beat(self, request_ids: Sequence[str]) -> None:
        """Another engine still waits for these."""
        self.engine.pins.beat(request_ids, self._clock())

    def flush(self) -> None:
        """Publish what happened to the cache outside of a step."""
        self._send(self.engine.pool.take_events())

    async def run(self) -> None:
        """Step for ever; the owner cancels."""
        while True:
            self._wake.clear()
            step = self.engine.step(self._clock())
            self._send(step.events)
            for output in step.outputs:
                self._deliver(output)
            for name in step.failed:
                self._feeds.pop(name).put(Lost.PULL_FAILED)
            self._carry(self.engine, step)
            if self.engine.dead is not None and not self._buried:
                self._buried = True
                self._lose(Lost.DEAD)
                self._died()
            await self._pause(step.next_at)

    async def _pause(self, until: float | None) -> None:
        if until is None:
            await self._wake.wait()
        elif self.engine.busy:
            await asyncio.sleep(max(0.0, until - self._clock()))
        else:
            # Only leases end at a time that is known; anything else wakes the engine.
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, until - self._clock())):
                    await self._wake.wait()

    def _lose(self, why: Lost) -> None:
        feeds = dict.fromkeys(self._feeds.values())
        self._feeds.clear()
        for feed in feeds:
            feed.put(why)

    def _send(self, events: Sequence[KvEvent]) -> None:
        if events:
            self._publish(events)

    def _deliver(self, output: Output) -> None:
        feed = self._feeds[output.id]
        if output.finish is not None:
            del self._feeds[output.id]
        feed.put(output)
