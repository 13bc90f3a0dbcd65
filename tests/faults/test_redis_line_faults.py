"""Faults E02 and E12, of lines: whoever opens, uses or closes one and fails leaves none open."""

import asyncio
import gc
import warnings
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from epp.errors import StoreError
from epp.framework import EndpointId, Incarnation
from epp.state.store.board import RedisBoard
from epp.state.store.leases import RedisRegister
from epp.state.store.place import Access, read_access
from epp.state.store.redis_reader import RedisReader
from epp.state.store.redis_writer import RedisWriter
from tests.fakes.chains import POOL, until
from tests.fakes.redis_server import running
from tests.fakes.resp_server import RespServer, listening

A = Incarnation(EndpointId(POOL, "a", 8000), 5)
MOST_STEPS = 400
"""Turns of the loop within which each of these calls has ended."""
MORE_THAN_BUFFERS = 20_000_000
"""Bytes that two sockets do not hold."""
KINDS = {
    "single": "redis://{}/1",
    "sentinel": "redis+sentinel://{}/x",
    "cluster": "redis+cluster://{}",
}


async def cancelled_at(step: int, call: Coroutine[Any, Any, object]) -> bool:
    """Await it, cancelled after so many turns of the loop; whether it had ended by then."""
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(call)
        for _ in range(step):
            await asyncio.sleep(0)
        ended = task.done()
        task.cancel()
    return ended


async def each_step(server: RespServer, one: Callable[[int], Awaitable[bool]]) -> None:
    """Do it, cancelled one turn later each time, until it ends before; no line stays open."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ResourceWarning)
        for step in range(MOST_STEPS):
            ended = await one(step)
            gc.collect()
            assert [str(warning.message) for warning in told] == [], f"cancelled at step {step}"
            await until(lambda: server.lines == 0)
            if ended:
                assert server.opened > 0
                return
    raise AssertionError("it never ends")


@pytest.mark.parametrize("kind", KINDS)
async def test_E02_a_call_that_is_cancelled_anywhere_leaves_no_line_open(kind: str) -> None:
    """Red when Place does not cut the line over which it asked for the way."""
    async with listening() as server:
        access = read_access(KINDS[kind].format(server.where))

        async def one(step: int) -> bool:
            writer = RedisWriter(access, POOL, call_s=30.0)
            ended = await cancelled_at(step, writer.claim(A, 1))
            await writer.close()
            return ended

        await each_step(server, one)


async def writing(access: Access) -> RedisWriter:
    writer = RedisWriter(access, POOL)
    await writer.claim(A, 1)
    return writer


async def reading(access: Access) -> RedisReader:
    reader = RedisReader(access, POOL, members=list, streams=3)
    for stream in reader.streams:
        await stream._call(lambda client: client.ping())
    return reader


async def standing(access: Access) -> RedisRegister:
    register = RedisRegister(access, POOL, "replica")
    await register.take("planner", 1.0)
    return register


async def posting(access: Access) -> RedisBoard:
    board = RedisBoard(access, POOL, "replica")
    await board._run("a script")
    return board


@pytest.mark.parametrize("opened", [writing, reading, standing, posting])
async def test_E02_a_closing_that_is_cancelled_anywhere_leaves_no_line_open(
    opened: Callable[[Access], Awaitable[RedisWriter | RedisReader | RedisRegister | RedisBoard]],
) -> None:
    """Red when a line is closed as redis-py closes it: over several turns of the loop."""
    async with listening() as server:
        access = read_access(KINDS["single"].format(server.where))

        async def one(step: int) -> bool:
            connected = await opened(access)
            assert server.lines > 0
            return await cancelled_at(step + 1, connected.close())

        await each_step(server, one)


async def test_E12_the_line_to_a_frozen_redis_is_let_go_with_what_it_does_not_take() -> None:
    """Red when a line is closed only after what is still to be sent: a frozen server never takes
    that, and the line stays open with the megabytes of a snapshot behind it."""
    with running() as server:
        writer = RedisWriter(read_access(server.url), POOL, call_s=0.2)
        await writer.claim(A, 1)
        server.freeze()
        with_the_line = _open_files()
        with pytest.raises(StoreError):
            await writer._run("x" * MORE_THAN_BUFFERS, [], [])
        await until(lambda: _open_files() < with_the_line)
        await writer.close()
        assert _open_files() < with_the_line


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
