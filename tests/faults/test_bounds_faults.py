"""Field faults of what grows with its clients: waiting requests, and the keys of their prompts."""

from array import array
from random import Random

import grpc
import pytest

from epp.request.transport.grpc import serve
from epp.request.transport.limits import TransportLimits
from epp.state.blocks import seed_of, token_keys
from tests.fakes import extproc_messages as envoy
from tests.fakes.director import ScriptedDirector, route
from tests.fakes.extproc_client import call, channel
from tests.fakes.waiting import until

BLOCK_TOKENS = 4
BLOCK_BYTES = 16


async def test_G05_streams_beyond_the_limit_are_refused_counted_and_forgotten() -> None:
    """Protected by the check of `max_streams` in `ExtProcServer._process`; red without it: the
    fourth stream is served."""
    director = ScriptedDirector(lambda _: route("10.0.0.1:8000"))
    async with (
        serve(director, host="127.0.0.1", port=0, limits=TransportLimits(max_streams=3)) as server,
        channel(server.port) as to,
    ):
        live = [call(to) for _ in range(3)]
        for stream in live:
            await stream.send(envoy.GET)
            await stream.replies(1)
        for _ in range(5):
            assert await call(to).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert server.counts.aborted == {"RESOURCE_EXHAUSTED": 5}
        assert server.counts.live == 3
        live[0].cancel()
        await until(lambda: server.counts.live == 2)
        again = call(to)
        await again.send(envoy.GET)
        assert envoy.kinds(await again.replies(1)) == ["request_headers"]


async def test_G05_waiting_bodies_are_bounded_in_all_and_given_back_when_clients_leave() -> None:
    """Protected by `ByteBudget.take`; red when it always says yes: the fifth body is taken."""
    limits = TransportLimits(max_request_bytes=100_000, max_total_bytes=400_000)
    director = ScriptedDirector(lambda _: route("10.0.0.1:8000"))
    async with (
        serve(director, host="127.0.0.1", port=0, limits=limits) as server,
        channel(server.port) as to,
    ):
        waiting = [call(to) for _ in range(4)]
        for stream in waiting:
            await stream.send(envoy.request_headers(), envoy.request_body(b"x" * 100_000))
        await until(lambda: server.budget.used == 400_000)
        fifth = call(to)
        await fifth.send(envoy.request_headers(), envoy.request_body(b"x"))
        (reply,) = await fifth.replies(1)
        assert reply.immediate_response.status.code in (413, 429, 503)
        assert server.counts.refused.popitem()[1] == 1
        assert server.budget.used == 400_000
        for stream in waiting[:2]:
            stream.cancel()
        await until(lambda: server.budget.used == 200_000)
        for stream in waiting[2:]:
            stream.cancel()
        await until(lambda: server.budget.used == 0)
        assert server.counts.live == 0


@pytest.mark.parametrize(
    "millions", [1, pytest.param(10, marks=[pytest.mark.long, pytest.mark.timeout(600)])]
)
def test_G17_random_blocks_never_share_a_key(millions: int) -> None:
    """Protected by the 64 bits of a key in `blocks._chain`; red with 32 of them: about a hundred of
    a million are shared. With 64 that is one chance in forty million."""
    chance = Random(millions)
    shelves = [array("Q") for _ in range(64)]
    for prompt in range(1_000 * millions):
        tokens = chance.randbytes(1_000 * BLOCK_BYTES)
        for key in token_keys(tokens, seed_of(str(prompt % 7)), BLOCK_TOKENS):
            shelves[key & 63].append(key)
    assert sum(map(len, shelves)) == 1_000_000 * millions
    assert all(len(set(shelf)) == len(shelf) for shelf in shelves)


def test_G17_a_block_has_another_key_after_another_beginning() -> None:
    """Protected by the parent's key as seed in `blocks._chain`; red with a fixed seed, with which
    any prompt could be made to meet another in its middle."""
    same = bytes(range(BLOCK_BYTES))
    seed = seed_of("m")
    beginnings = [number.to_bytes(BLOCK_BYTES, "little") for number in range(1_000)]
    second = {token_keys(begin + same, seed, BLOCK_TOKENS)[1] for begin in beginnings}
    assert len(second) == 1_000


def test_G17_a_model_and_a_salt_are_part_of_every_key() -> None:
    """Protected by `blocks.seed_of`; red when a salt or a model is left out: whoever knows a prompt
    could warm it, or find out by its speed whether somebody else had sent it."""
    tokens = bytes(range(8 * BLOCK_BYTES))
    seeds = (seed_of("m"), seed_of("n"), seed_of("m", salt="s"), seed_of("m", lora="s"))
    keys = [token_keys(tokens, seed, BLOCK_TOKENS) for seed in seeds]
    assert len({key for chain in keys for key in chain}) == sum(map(len, keys))
