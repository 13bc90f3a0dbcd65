"""EventSubscriber on real sockets: both directions, damage, restarts, overflow, close."""

import asyncio
import contextlib

import msgspec
import pytest

from epp.state.events import Frame, decode
from epp.state.sequence import Continuity, continuity
from epp.state.subscriber import HARD_LIMIT, EventSubscriber, SubscribeError
from tests.fakes.kv_publisher import CLEARED_MAP, Publisher, payload
from tests.timing import scaled


async def first_frame(sub: EventSubscriber, publisher: Publisher) -> Frame:
    """Publish until a frame comes: subscriptions take a moment to travel."""

    async def knock() -> None:
        while True:
            await publisher.send([CLEARED_MAP])
            await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as tasks:
        knocking = tasks.create_task(knock())
        try:
            return await asyncio.wait_for(anext(sub), scaled(10))
        finally:
            knocking.cancel()


async def drain(sub: EventSubscriber) -> None:
    with contextlib.suppress(TimeoutError):
        while True:
            await asyncio.wait_for(anext(sub), 0.1)


async def following(sub: EventSubscriber) -> Frame:
    return await asyncio.wait_for(anext(sub), scaled(10))


@pytest.mark.parametrize("subscriber_binds", [False, True])
async def test_frames_arrive_whoever_binds(subscriber_binds: bool) -> None:
    if subscriber_binds:
        async with (
            EventSubscriber("tcp://127.0.0.1:*", bind=True) as sub,
            Publisher(sub.endpoint, bind=False) as publisher,
        ):
            frame = await first_frame(sub, publisher)
    else:
        async with (
            Publisher() as publisher,
            EventSubscriber(publisher.endpoint, bind=False) as sub,
        ):
            assert sub.endpoint == publisher.endpoint
            frame = await first_frame(sub, publisher)
    assert frame.topic == b"kv"
    assert decode(frame.payload).events


async def test_a_restarted_publisher_is_found_again_and_its_sequence_tells() -> None:
    async with Publisher() as publisher:
        endpoint = publisher.endpoint
        async with EventSubscriber(endpoint, bind=False) as sub:
            publisher.seq = 40
            last = (await first_frame(sub, publisher)).seq
            await drain(sub)
            await publisher.__aexit__(None, None, None)
            async with Publisher(endpoint) as reborn:
                again = (await first_frame(sub, reborn)).seq
                assert continuity(last, again) is Continuity.RESTART


async def test_damaged_messages_are_counted_and_the_next_good_one_comes() -> None:
    limit = 10_000
    seq = (3).to_bytes(8, "big")
    damaged = [
        [b"kv"],
        [b"kv", seq],
        [b"kv", seq, b"", b""],
        [b"kv", b"", b"x"],
        [b"kv", b"abc", b"x"],
        [b"kv", b"123456789", b"x"],
        [b"kv", b"\xff" * 8, b"x"],
        [b"kv", seq, bytes(limit)],
    ]
    async with (
        Publisher() as publisher,
        EventSubscriber(publisher.endpoint, bind=False, max_message=limit) as sub,
    ):
        await first_frame(sub, publisher)
        await drain(sub)
        for parts in damaged:
            await publisher.send_raw(parts)
        await publisher.send_raw([b"kv", seq, payload([CLEARED_MAP])])
        assert (await following(sub)).payload == payload([CLEARED_MAP])
        assert sub.damaged == len(damaged)


async def test_a_message_of_exactly_the_limit_is_read() -> None:
    limit = 10_000
    async with (
        Publisher() as publisher,
        EventSubscriber(publisher.endpoint, bind=False, max_message=limit) as sub,
    ):
        await first_frame(sub, publisher)
        await drain(sub)
        await publisher.send_raw([b"kv", bytes(8), bytes(limit - 10)])
        assert len((await following(sub)).payload) == limit - 10
        assert sub.damaged == 0


@pytest.mark.parametrize("subscriber_binds", [False, True])
async def test_after_a_huge_message_the_reader_goes_on(subscriber_binds: bool) -> None:
    limit = 1000
    async with contextlib.AsyncExitStack() as stack:
        if subscriber_binds:
            sub = EventSubscriber("tcp://127.0.0.1:*", bind=True, max_message=limit)
            await stack.enter_async_context(sub)
            publisher = Publisher(sub.endpoint, bind=False)
            await stack.enter_async_context(publisher)
        else:
            publisher = await stack.enter_async_context(Publisher())
            sub = EventSubscriber(publisher.endpoint, bind=False, max_message=limit)
            await stack.enter_async_context(sub)
        await first_frame(sub, publisher)
        await drain(sub)
        await publisher.send_raw([b"kv", bytes(8), bytes(HARD_LIMIT * limit + 1)])
        assert await first_frame(sub, publisher)


async def test_what_does_not_fit_the_queue_shows_as_a_gap() -> None:
    async with (
        Publisher() as publisher,
        EventSubscriber(publisher.endpoint, bind=False, max_queue=2) as sub,
    ):
        await first_frame(sub, publisher)
        await drain(sub)
        publisher.seq = 1_000_000
        last = publisher.seq - 1
        # More than ZMQ and TCP hold between them (the publisher's own limit is 1000 messages).
        big = msgspec.msgpack.encode([1.0, [], 0, bytes(100_000)])
        for _ in range(3000):
            await publisher.send_raw([b"kv", publisher.seq.to_bytes(8, "big"), big])
            publisher.seq += 1
        seen: list[int] = []
        with contextlib.suppress(TimeoutError):
            while True:
                seen.append((await asyncio.wait_for(anext(sub), 0.3)).seq)
        assert len(seen) < 3000
        await publisher.send([CLEARED_MAP])
        seen.append((await following(sub)).seq)
        assert Continuity.GAP in map(continuity, [last, *seen], seen)


async def test_a_flood_leaves_other_tasks_their_turns() -> None:
    async with (
        Publisher() as publisher,
        EventSubscriber(publisher.endpoint, bind=False) as sub,
    ):
        await first_frame(sub, publisher)
        await drain(sub)
        for _ in range(900):
            await publisher.send([CLEARED_MAP])
        await asyncio.sleep(0.3)  # all of them wait in the queue
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(other())
            for _ in range(900):
                await following_now(sub)
            task.cancel()
        assert turns >= 900 // 64


async def following_now(sub: EventSubscriber) -> Frame:
    """Like `anext`, with no timer around it that would itself give way to other tasks."""
    return await anext(sub)


async def test_an_address_in_use_is_a_clear_error_and_leaves_nothing_open() -> None:
    async with EventSubscriber("tcp://127.0.0.1:*", bind=True) as first:
        with pytest.raises(SubscribeError, match=r"cannot listen for KV events at tcp://127"):
            await EventSubscriber(first.endpoint, bind=True).__aenter__()


async def test_ipv6_loopback_works_too() -> None:
    async with (
        EventSubscriber("tcp://[::1]:*", bind=True) as sub,
        Publisher(sub.endpoint, bind=False) as publisher,
    ):
        assert await first_frame(sub, publisher)


async def test_what_is_no_address_is_a_clear_error() -> None:
    with pytest.raises(SubscribeError, match=r"cannot connect for KV events at nonsense"):
        await EventSubscriber("nonsense", bind=False).__aenter__()


async def test_a_closed_subscriber_ends_its_iteration() -> None:
    async with EventSubscriber("tcp://127.0.0.1:*", bind=True) as sub:
        pass
    assert [frame async for frame in sub] == []


@pytest.mark.parametrize("wrong", [{"max_message": 0}, {"max_queue": 0}])
def test_limits_of_a_subscriber_are_positive(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        EventSubscriber("tcp://127.0.0.1:1", bind=False, **wrong)
