"""Benches that ask Redis themselves do it by the store's own connections."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine

import pytest
import pytest_asyncio

from epp.commands import follow, store
from epp.errors import StoreError
from epp.framework import EndpointId, PoolId
from epp.state.store.link import CALL_S
from epp.state.store.place import Access
from tests.timing import scaled

POOL = PoolId("bench/silent")
LOAD = follow.Load(endpoints=1, keys_per_s=1, seconds=1.0, pool=POOL)
ASKS: dict[str, Callable[[Access], Coroutine[None, None, object]]] = {
    "follow": lambda access: follow._redis_s(access, LOAD),
    "store": lambda access: store._weight(access, [EndpointId(POOL, "bench/0", 8000)]),
}


@pytest_asyncio.fixture
async def frozen() -> AsyncIterator[Access]:
    """A Redis that takes connections and says nothing."""

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1024):
            pass
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    async with server:
        yield Access(kind="single", hosts=(server.sockets[0].getsockname()[:2],))


@pytest.mark.parametrize("bench", ASKS)
async def test_a_bench_of_a_redis_that_says_nothing_ends_with_a_sentence(
    bench: str, frozen: Access
) -> None:
    began = time.monotonic()
    with pytest.raises(StoreError, match="Redis at 127"):
        await ASKS[bench](frozen)
    assert time.monotonic() - began < CALL_S + scaled(1.0)


@pytest.mark.parametrize("bench", ASKS)
async def test_a_bench_that_is_cancelled_while_it_asks_ends(bench: str, frozen: Access) -> None:
    async with asyncio.timeout(CALL_S / 2), asyncio.TaskGroup() as tg:
        task = tg.create_task(ASKS[bench](frozen))
        await asyncio.sleep(0.05)
        task.cancel()
