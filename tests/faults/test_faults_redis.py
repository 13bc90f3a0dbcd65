"""Faults E: Redis is away, slow, emptied, restricted, full or odd, and nothing depends on it.

The whole chain is real: writer, redis-server, reader, and the pool's state behind it.
"""

import asyncio
import itertools
import random
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from epp.errors import Fenced
from epp.framework import EndpointId, Incarnation, PoolId
from epp.state.store import layout
from epp.state.store.layout import log_key
from epp.state.store.place import Access, read_access
from epp.state.store.redis_reader import RedisReader
from epp.state.store.redis_writer import RedisWriter
from tests.fakes.chains import KEYS, LIFE_MS, POOL, Chain, new_state, running_chain, until
from tests.fakes.redis_server import RedisServer, running
from tests.timing import scaled

A = EndpointId(POOL, "a", 8000)
FAR_FUTURE = "99999999999999-0"


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with running() as server:
        yield server


def chain_on(url: str, pool: PoolId = POOL, password: str | None = None) -> Chain:
    access = read_access(url, password=password)
    return Chain(writer_on(url, pool, password), reader_of(access, pool), new_state(pool))


def writer_on(url: str, pool: PoolId = POOL, password: str | None = None) -> RedisWriter:
    return RedisWriter(read_access(url, password=password), pool, call_s=0.3)


def reader_of(access: Access, pool: PoolId = POOL) -> RedisReader:
    members = [EndpointId(pool, "a", 8000)]
    return RedisReader(access, pool, members=lambda: members, rng=random.Random(1))


async def test_C26_who_reads_late_takes_no_replaced_writer_for_the_present_one(
    server: RedisServer,
) -> None:
    """`RedisStream._is_known` passes over what a snapshot that was read has in it: else the words
    of a writer that was replaced before it come behind it, and the present one counts as replaced,
    for ever."""
    chain = chain_on(server.url)
    (stream,) = chain.reader.streams
    life = Incarnation(A, LIFE_MS)

    async def speak(nonce: int) -> None:
        await chain.writer.claim(life, nonce)
        await chain.writer.save(chain.saved(nonce, 0))
        await chain.writer.append(chain.record(nonce, 1))

    async def go_on(nonce: int) -> None:
        for seq in itertools.count(2):
            await chain.writer.append(chain.record(nonce, seq))
            await asyncio.sleep(0.02)

    await speak(1)
    reading = stream.records()
    for record in await anext(reading):
        chain.state.apply(record, time.monotonic())
    await reading.aclose()  # the replica stands still
    await speak(2)
    await speak(3)
    chain.reader.stream_of(A).reread([A])
    async with asyncio.TaskGroup() as tasks:
        both = [tasks.create_task(chain.read(stream)), tasks.create_task(go_on(3))]
        await until(chain.precise)
        for task in both:
            task.cancel()
    assert chain.state.counts["feed-fenced"] == 0
    await chain.reader.close()
    await chain.writer.close()


async def test_E01_redis_away_steps_down_and_climbs_back_by_itself(server: RedisServer) -> None:
    """Red when a StoreError ends RedisStream.records."""
    server.kill()
    async with running_chain(chain_on(server.url)) as chain:
        await asyncio.sleep(0.3)
        assert chain.stepped_down()
        assert not chain.reader.connected
        assert not chain.reader.warm
        server.start()
        await until(chain.precise)
        assert chain.reader.connected
        server.kill()
        await until(chain.stepped_down)
        server.start()
        await until(chain.precise)
        assert chain.reader.counts["reconnects"] >= 1


async def test_E02_a_cancelled_call_leaves_no_answer_for_the_next(server: RedisServer) -> None:
    """Red when the client keeps the line of a cancelled call (seen with redis-py's
    `disconnect_on_error` set to False): a claim that is fenced reads an earlier append's answer."""
    writer = writer_on(server.url)
    chance = random.Random(3)
    await writer.claim(Incarnation(A, 5), 1)
    cancelled = 0
    for number in range(60):
        if chance.random() < 0.5:
            server.command("CLIENT", "PAUSE", "6")
        try:
            async with asyncio.timeout(0.003):
                await writer.append(b"%d" % number)
        except TimeoutError:
            cancelled += 1
        if number % 10 == 0:
            with pytest.raises(Fenced):
                await writer.claim(Incarnation(A, 4), 2)
            await writer.claim(Incarnation(A, 5), 1)
    assert cancelled > 10
    await writer.close()


async def test_E03_one_writer_and_one_reader_use_two_connections(server: RedisServer) -> None:
    """Red when Link.drop forgets its client without closing it: connections pile up."""
    async with running_chain(chain_on(server.url)) as chain:
        await until(chain.precise)
        for _ in range(3):  # each time the calls take longer than their limit
            server.command("CLIENT", "PAUSE", "400")
            failures = len(chain.failures)
            await until(lambda failures=failures: len(chain.failures) > failures)
            await until(chain.precise)
        server.command("SET", log_key(POOL), "oops")  # and now they are refused, over a good line
        failures = len(chain.failures)
        await until(lambda: len(chain.failures) >= failures + 8)
        line = next(
            line
            for line in server.command("INFO", "clients").splitlines()
            if line.startswith("connected_clients:")
        )
        assert int(line.partition(":")[2]) <= 5


async def test_E05_a_demoted_server_is_a_store_error_until_it_is_promoted(
    server: RedisServer,
) -> None:
    """Red when a ResponseError is not a StoreError in Link.call."""
    async with running_chain(chain_on(server.url)) as chain:
        await until(chain.precise)
        server.command("REPLICAOF", "127.0.0.1", "1")
        await until(lambda: any("READONLY" in text.upper() for text in chain.failures))
        assert chain.state.ready(time.monotonic())
        server.command("REPLICAOF", "NO", "ONE")
        await until(chain.precise)


async def test_E07_a_full_redis_loses_the_log_and_nothing_else() -> None:
    """Red when an OOM answer is not a StoreError: the writer's task would die."""
    with running() as server:
        async with running_chain(chain_on(server.url)) as chain:
            await until(chain.precise)
            server.command("CONFIG", "SET", "maxmemory", "1")
            await until(lambda: bool(chain.failures))
            assert "maxmemory" in chain.failures[0]
            await until(chain.stepped_down)
            server.command("CONFIG", "SET", "maxmemory", "0")
            await until(chain.precise)


@pytest.mark.parametrize("policy", ["volatile-lru", "allkeys-lru"])
async def test_E07_evicted_keys_are_written_again(policy: str) -> None:
    """Red when the snapshot has no time to live: volatile policies would find nothing to evict."""
    with running("--maxmemory", "3mb", "--maxmemory-policy", policy) as server:
        async with running_chain(chain_on(server.url)) as chain:
            await until(chain.precise)
            for number in range(60):  # strangers' keys push ours out
                server.command("SET", f"stranger{number}", "x" * 60_000, "EX", "1000")
                await asyncio.sleep(0.01)
            for key in server.command("KEYS", "epp:*").split():
                if key.startswith("epp:"):
                    assert int(server.command("PTTL", key)[1:]) > 0, f"{key} lives for ever"
            server.command("FLUSHALL")
            await until(chain.precise)


def test_E08_what_decides_cannot_even_reach_redis() -> None:
    """Red when the pool's state, or the order of steps, imports a Redis client: a look-up of a
    long prompt is memory alone, whatever its length."""
    decides = "import sys, epp.request.director, epp.state.pool"
    code = f"{decides}; sys.exit('redis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_E09_no_command_walks_the_keys(server: RedisServer) -> None:
    """Red when anything asks for KEYS, SCAN or SMEMBERS, or for a hash whole."""
    async with running_chain(chain_on(server.url)) as chain:
        await until(chain.precise)
    stats = server.command("INFO", "commandstats").lower()
    assert "cmdstat_evalsha" in stats
    for forbidden in ("keys", "scan", "smembers", "hgetall", "hkeys"):
        assert f"cmdstat_{forbidden}:" not in stats


@pytest.mark.parametrize(
    "words", [("FLUSHALL",), ("SCRIPT", "FLUSH"), ("CLIENT", "KILL", "TYPE", "normal")]
)
async def test_E10_an_emptied_redis_refills_without_a_storm_of_gaps(
    server: RedisServer, words: tuple[str, ...]
) -> None:
    """Red without the reload on NOSCRIPT in Scripts.run (SCRIPT FLUSH), or when a lost lease is
    not a StoreError (FLUSHALL)."""
    async with running_chain(chain_on(server.url)) as chain:
        await until(chain.precise)
        chain.held = (*KEYS, 5)
        assert not chain.precise()
        server.command(*words)
        if words[0] == "SCRIPT":
            await asyncio.sleep(0.2)
            assert chain.failures == []
        await until(chain.precise)
        assert chain.state.counts["feed-gap"] <= 1


async def test_E10_a_restarted_empty_redis_is_begun_anew(server: RedisServer) -> None:
    """Red when RedisStream._connect goes on with its cursor although the run id is another: what
    the new server got before its ids passed our cursor would be missing."""
    chain = chain_on(server.url)
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(chain.read(chain.reader.streams[0]))
        server.command("XADD", log_key(POOL), "1000-0", "e", "x", "r", "before the restart")
        await until(lambda: chain.reader.streams[0]._cursor == b"1000-0")
        server.restart()
        writing = tasks.create_task(chain.write())
        await until(chain.precise)
        reading.cancel()
        writing.cancel()
    assert chain.reader.counts["restarts"] == 1
    await chain.reader.close()
    await chain.writer.close()


async def test_E10_a_server_that_took_over_between_two_reads_is_noticed(
    server: RedisServer,
) -> None:
    """Red when the client opens a line again by itself: then nobody looks who answers there."""
    reader = reader_of(read_access(server.url))
    reading = reader.streams[0].records()
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(anext(reading))
        await until(lambda: reader.connected)
        server.command("XADD", log_key(POOL), "*", "e", "x", "r", "before")
        assert await first == [b"before"]
        server.restart()  # while nothing is asked
        await asyncio.sleep(0.1)  # until the client sees the end of its line
        server.command("XADD", log_key(POOL), FAR_FUTURE, "e", "x", "r", "after")
        following = tasks.create_task(anext(reading))
        await until(lambda: reader.counts["restarts"] == 1 and reader.connected)
        following.cancel()
    assert (reader.counts["reconnects"], reader.counts["errors"]) == (1, 1)
    await reader.close()


async def test_E10_a_stream_that_went_back_under_a_living_connection_is_noticed(
    server: RedisServer,
) -> None:
    """Red without the look at the last id (`_went_back`) when a read came back empty."""
    async with running_chain(chain_on(server.url)) as chain:
        await until(chain.precise)
        server.command("XADD", log_key(POOL), FAR_FUTURE, "r", "somebody with a fast clock")
        stream = chain.reader.streams[0]
        await until(lambda: stream._cursor >= FAR_FUTURE.encode())
        chain.held = (*KEYS, 5)
        server.command("FLUSHALL")
        await until(chain.precise)
        assert chain.reader.counts["reconnects"] == 0


async def test_E11_pools_on_one_redis_do_not_touch_each_other(server: RedisServer) -> None:
    """Red when the pool is not part of the keys."""
    one, two = chain_on(server.url, PoolId("one")), chain_on(server.url, PoolId("two"))
    two.held = (7, 8)
    async with running_chain(one), running_chain(two):
        await until(lambda: one.precise() and two.precise())
        one.held = (9,)
        server.command("DEL", "epp:{one:0}:lease:one|a|8000")
        await until(one.precise)
        assert two.precise()
        assert two.failures == []
        assert one.state.counts["record-no-member"] == 0


async def test_E11_two_replicas_know_the_same_and_twice_is_once(server: RedisServer) -> None:
    """Red when a record that is read again is no duplicate (Feed._judge)."""
    other = reader_of(read_access(server.url))
    async with running_chain(chain_on(server.url)) as chain:
        await until(chain.precise)
        replica = Chain(chain.writer, other, new_state())
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(replica.read(other.streams[0]))
            await until(replica.precise)
            replica.held = chain.held = (*KEYS, 5)
            await until(lambda: replica.precise() and chain.precise())
            other.streams[0].reread([A])
            before = other.counts["snapshots"]
            await until(lambda: other.counts["snapshots"] > before)
            await until(replica.precise)
            reading.cancel()
        assert replica.state.counts["feed-duplicate"] >= 1
        assert replica.state.counts["feed-gap"] == 0
    await other.close()


async def test_E12_a_frozen_redis_blocks_nobody_and_is_heard_again(server: RedisServer) -> None:
    """Red without the time limit of Link.call."""
    async with running_chain(chain_on(server.url)) as chain:
        await until(chain.precise)
        server.freeze()
        try:
            await until(lambda: len(chain.failures) >= 2 and not chain.reader.connected)
            assert chain.longest_s < scaled(1.0)
            assert chain.state.ready(time.monotonic())
        finally:
            server.thaw()
        chain.held = (*KEYS, 5)
        await until(chain.precise)


async def test_E12_while_redis_is_out_of_reach_nobody_is_given_up(server: RedisServer) -> None:
    """Red when Mirror.silent counts silence that we could not have heard."""
    async with running_chain(chain_on(server.url)) as chain:
        await until(chain.precise)
        lease_s = chain.state.rules.writer_lost_s
        server.freeze()
        try:
            await until(lambda: not chain.reader.connected)
            now = time.monotonic()
            assert _lost_writers(chain, now + 10 * lease_s) == []
        finally:
            server.thaw()
        await until(chain.precise)
        since = chain.reader.listening_since
        assert since is not None
        assert _lost_writers(chain, since + 0.9 * lease_s) == []
        assert _lost_writers(chain, time.monotonic() + 1.1 * lease_s) == [A]


def _lost_writers(chain: Chain, now: float) -> list[EndpointId]:
    since = chain.reader.listening_since
    lease_s = chain.state.rules.writer_lost_s
    return list(chain.state._mirror.silent(lease_s, now, listening_since=since))


async def test_E13_odd_entries_are_passed_over_and_counted(server: RedisServer) -> None:
    """Red when `_read` believes that every entry has a field `r`, or `apply` that it parses."""
    async with running_chain(chain_on(server.url)) as chain:
        await until(chain.precise)
        server.command("XADD", log_key(POOL), "*", "x", "y")
        server.command("XADD", log_key(POOL), "*", "r", b"not a record \xff\xfe")
        await until(lambda: chain.reader.counts["odd-entries"] == 1)
        await until(lambda: chain.state.counts["record-damaged"] == 1)
        assert chain.precise()


async def test_E13_an_odd_snapshot_is_passed_over_and_counted(server: RedisServer) -> None:
    """Red when `_saved` believes that a snapshot has a cursor, and parts that are frames."""
    key = layout.snapshot_key(A)
    server.command("HSET", key, "cursor", "not an id", "parts", "x")
    chain = chain_on(server.url)
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(chain.read(chain.reader.streams[0]))
        await until(lambda: chain.reader.warm)
        assert chain.reader.counts["odd-entries"] == 1
        writing = tasks.create_task(chain.write())
        await until(chain.precise)
        reading.cancel()
        writing.cancel()
    await chain.reader.close()
    await chain.writer.close()


async def test_E13_a_key_of_another_type_is_an_error_that_heals(server: RedisServer) -> None:
    """Red when a ResponseError ends the reader's or the writer's task."""
    server.command("SET", log_key(POOL), "oops")
    async with running_chain(chain_on(server.url)) as chain:
        await until(lambda: bool(chain.failures) and chain.reader.counts["errors"] > 0)
        server.command("DEL", log_key(POOL))
        await until(chain.precise)
        assert chain.reader.connected
