"""Replays of KV events over real sockets, up to what a sidecar's mirror makes of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from epp.state.blocks import seed_of, token_keys
from epp.state.events import Frame
from epp.state.replaying import ReplayError, fetch
from epp.state.sequence import Replay
from epp.state.subscriber import EventSubscriber, SubscribeError, of_rank
from epp.state.writing.cache import CacheMirror
from epp.state.writing.following import Following
from tests.fakes.kv_publisher import CLEARED_MAP, removed_map, stored_map
from tests.fakes.kv_replays import ReplayingPublisher

SIZE = 64


def block(number: int) -> dict[str, object]:
    return stored_map([number], tokens(number), SIZE)


def tokens(number: int) -> list[int]:
    return list(range(number * 1000, number * 1000 + SIZE))


def key(number: int) -> int:
    return token_keys(tokens(number), seed_of("m"))[0]


class Mirror:
    """The mirror as a `Taker`, and how often a test had to wait for it."""

    def __init__(self, clock: float = 0.0) -> None:
        self.cache = CacheMirror(lambda _: None, replays=True, clock=lambda: clock)
        self.cache.serve("m")
        self.restarts = 0
        self.life = 1

    def start_ms(self) -> int:
        return self.life

    @property
    def wanted(self) -> Replay | None:
        return self.cache.wanted

    def look(self) -> None:
        self.cache.look()

    def frame(self, frame: Frame) -> None:
        self.restarts += self.cache.on(frame)

    def replayed(self, frame: Frame) -> None:
        self.restarts += self.cache.replayed(frame)

    def replay_ended(self, *, complete: bool) -> None:
        self.restarts += self.cache.replay_ended(complete=complete)

    async def knows(self, *numbers: int) -> None:
        expected = {key(number) for number in numbers}
        async with asyncio.timeout(10):
            while set(self.cache.present()) != expected or self.wanted is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@asynccontextmanager
async def following(engine: ReplayingPublisher, mirror: Mirror) -> AsyncIterator[Following]:
    ready = asyncio.Event()
    ready.set()
    subscriber = EventSubscriber(engine.endpoint, bind=False)
    follow = Following(subscriber, mirror, replay=engine.replay_endpoint)
    async with asyncio.TaskGroup() as tg:
        task = tg.create_task(follow.run(ready))
        try:
            yield follow
        finally:
            task.cancel()


async def heard(engine: ReplayingPublisher, mirror: Mirror) -> None:
    """Wait until the subscription stands: until then messages are lost."""
    async with asyncio.timeout(10):
        while not mirror.cache.counts.frames:
            await engine.send([CLEARED_MAP])
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("with_topic", [True, False], ids=["topic", "no topic"])
async def test_a_replay_is_read_in_both_layouts(with_topic: bool) -> None:
    async with ReplayingPublisher(with_topic=with_topic).running() as engine:
        for number in range(5):
            engine.keep([block(number)])
        found = [frame.seq async for frame in fetch(engine.replay_endpoint, 2)]
    assert found == [2, 3, 4]
    assert engine.asked == [2]


async def test_an_engine_that_falls_silent_ends_a_replay() -> None:
    async with ReplayingPublisher().running() as engine:
        engine.silent = True
        with pytest.raises(ReplayError, match="fell silent"):
            _ = [one async for one in fetch(engine.replay_endpoint, 0, idle_s=0.05)]


async def test_a_replay_has_a_limit() -> None:
    async with ReplayingPublisher().running() as engine:
        for number in range(5):
            engine.keep([block(number)])
        with pytest.raises(ReplayError, match="more than 3 messages"):
            _ = [one async for one in fetch(engine.replay_endpoint, 0, max_messages=3)]
        with pytest.raises(ReplayError, match="bytes in a replay"):
            _ = [one async for one in fetch(engine.replay_endpoint, 0, max_message=10)]


async def test_an_endpoint_that_is_none_is_told() -> None:
    with pytest.raises(ReplayError, match="cannot ask nonsense"):
        _ = [one async for one in fetch("nonsense", 0)]


async def test_an_engine_that_was_there_before_is_known_though_it_says_nothing() -> None:
    mirror = Mirror()
    async with ReplayingPublisher().running() as engine:
        for number in range(1, 200):
            engine.keep([block(number)])
        async with following(engine, mirror):
            await mirror.knows(*range(1, 200))
    assert mirror.cache.sees_events


async def test_what_was_missed_is_mended_and_in_its_order() -> None:
    mirror = Mirror()
    async with ReplayingPublisher().running() as engine, following(engine, mirror):
        await heard(engine, mirror)
        await engine.send([block(1), block(2)])
        engine.keep([block(3)])
        engine.keep([removed_map([1])])
        await engine.send([block(4), removed_map([3])])
        await mirror.knows(2, 4)
    assert mirror.cache.sequence.gaps == 1
    assert mirror.restarts == 0


async def test_an_engine_that_answers_no_replays_is_followed_all_the_same() -> None:
    mirror = Mirror()

    async with ReplayingPublisher().running() as engine:
        engine.silent = True
        async with following(engine, mirror):
            await heard(engine, mirror)
            await engine.send([block(1)])
            await mirror.knows(1)
    assert mirror.cache.sequence.failed_replays == 1


async def test_a_new_life_of_the_engine_is_asked_for_all_of_it() -> None:
    mirror = Mirror()
    async with ReplayingPublisher().running() as engine, following(engine, mirror):
        await heard(engine, mirror)
        for number in range(1, 9):
            await engine.send([block(number)])
        await mirror.knows(*range(1, 9))
        engine.restart()
        engine.keep([block(15)])
        engine.keep([block(16)])
        await engine.send([block(17), removed_map([15])])
        await mirror.knows(16, 17)
    assert mirror.restarts >= 1


def test_the_ports_of_ranks_count_up() -> None:
    assert of_rank("tcp://127.0.0.1:5557", 3) == "tcp://127.0.0.1:5560"
    assert of_rank("tcp://[::1]:5557", 1) == "tcp://[::1]:5558"
    assert of_rank("inproc://kv", 2) == "inproc://kv_dp2"
    with pytest.raises(SubscribeError, match="no port"):
        of_rank("ipc:///run/kv", 1)


async def test_messages_that_waited_while_the_engine_restarted_are_left_unread() -> None:
    mirror, ready = Mirror(), asyncio.Event()
    async with ReplayingPublisher().running() as engine:
        engine.silent = True
        follow = Following(EventSubscriber(engine.endpoint, bind=False), mirror, replay=None)
        async with asyncio.TaskGroup() as tg:
            task = tg.create_task(follow.run(ready))
            for _ in range(20):
                await engine.send([block(1)])
                await asyncio.sleep(0.02)
            mirror.life = 2
            ready.set()
            await heard(engine, mirror)
            task.cancel()
    assert mirror.cache.present() == []
    assert mirror.cache.sequence.gaps == 0
