"""Faults E: Redis is away, slow, emptied, replaced, restricted or odd, and nothing depends on it.

The whole chain is real: writer, redis-server, reader, and the pool's state behind it.
"""

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from epp.errors import Fenced, StoreError
from epp.framework import EndpointId, Incarnation, PoolId, Rung
from epp.state.endpoints import Endpoints, Member
from epp.state.load import LoadBook
from epp.state.pool import PoolRules, PoolState
from epp.state.prefix.index import PrefixIndex
from epp.state.prefix.predicted import PredictedIndex
from epp.state.records import BlockChange, EngineStatus, Record, encode
from epp.state.store import redis as redis_log
from epp.state.store.redis import RedisReader, RedisWriter, log_key
from tests.fakes.redis_server import RedisServer, running
from tests.timing import scaled

POOL = PoolId("p")
A = EndpointId(POOL, "a", 8000)
KEYS = (1, 2, 3, 4)
FAR_FUTURE = "99999999999999-0"


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with running() as server:
        yield server


def new_state(pool: PoolId = POOL) -> PoolState:
    state = PoolState(
        pool,
        Endpoints(),
        PrefixIndex(1_000),
        PredictedIndex(1_000, 60.0),
        LoadBook(),
        rules=PoolRules(fresh_s=0.7),
    )
    state.replace([Member(id=EndpointId(pool, "a", 8000), address="127.0.0.1:8000")], 0.0)
    return state


class Chain:
    """A writer that does what a sidecar does, and a reader that does what the picker does."""

    def __init__(self, url: str, pool: PoolId = POOL, password: str | None = None) -> None:
        self.state = new_state(pool)
        self.reader = RedisReader(url, pool, password=password, rng=random.Random(1))
        self.writer = RedisWriter(url, pool, password=password, call_s=0.3)
        self.endpoint = EndpointId(pool, "a", 8000)
        self.held: tuple[int, ...] = KEYS
        self.resumed = 0
        self.failures: list[str] = []
        self.longest_s = 0.0

    async def read(self) -> None:
        async for batch in self.reader.records():
            self.resumed += batch.resumed
            for record in batch.records:
                self.state.apply(record, time.monotonic())

    async def write(self) -> None:
        life, nonce = Incarnation(self.endpoint, 5), 0
        while True:
            began = time.monotonic()
            try:
                nonce, seq = nonce + 1, 0
                await self.writer.claim(life, nonce)
                while True:
                    seq += 1
                    blocks = BlockChange(stored=self.held, reset=True) if seq == 1 else None
                    status = EngineStatus(ready=True, events=True)
                    record = Record(
                        incarnation=life, nonce=nonce, seq=seq, blocks=blocks, status=status
                    )
                    began = time.monotonic()
                    await self.writer.append(encode(record))
                    await asyncio.sleep(0.02)
            except StoreError as error:
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                self.failures.append(str(error))
                await asyncio.sleep(0.05)

    def precise(self) -> bool:
        now = time.monotonic()
        keys = self.held
        (found,) = self.state.candidates(keys, block_tokens=64, prompt_tokens=1_000, now=now)
        return self.state.rung(self.endpoint, now) is Rung.PRECISE and found.match.tokens == 64 * (
            len(keys)
        )

    def stepped_down(self) -> bool:
        now = time.monotonic()
        assert self.state.ready(now), "an endpoint is routable whatever becomes of Redis"
        return self.state.rung(self.endpoint, now) is Rung.PREDICTED


@asynccontextmanager
async def running_chain(chain: Chain) -> AsyncIterator[Chain]:
    try:
        async with asyncio.TaskGroup() as tasks:
            both = [tasks.create_task(chain.read()), tasks.create_task(chain.write())]
            try:
                yield chain
            finally:
                for task in both:
                    task.cancel()
    finally:
        await chain.reader.close()
        await chain.writer.close()


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    async with asyncio.timeout(scaled(seconds)):
        while not condition():  # noqa: ASYNC110 - the condition belongs to somebody else
            await asyncio.sleep(0.01)


async def test_E01_redis_away_steps_down_and_climbs_back_by_itself(server: RedisServer) -> None:
    """Red without the reconnect in RedisReader.records (`_connect` after an error)."""
    server.kill()
    async with running_chain(Chain(server.url)) as chain:
        await asyncio.sleep(0.3)
        assert chain.stepped_down()
        assert not chain.reader.connected
        server.start()
        await until(chain.precise)
        assert chain.reader.connected
        server.kill()
        await until(chain.stepped_down)
        server.start()
        await until(chain.precise)
        assert chain.resumed >= 1


async def test_E02_a_cancelled_call_leaves_no_answer_for_the_next(server: RedisServer) -> None:
    """Red when the client keeps the line of a cancelled call (seen with redis-py's
    `disconnect_on_error` set to False): a claim that is fenced reads an earlier append's 1."""
    writer = RedisWriter(server.url, POOL)
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
    """Red with a client for each call in RedisWriter._run: connections pile up."""
    async with running_chain(Chain(server.url)) as chain:
        await until(chain.precise)
        server.command("CLIENT", "KILL", "TYPE", "normal")
        await asyncio.sleep(0.3)
        await until(chain.precise)
        line = next(
            line
            for line in server.command("INFO", "clients").splitlines()
            if line.startswith("connected_clients:")
        )
        assert int(line.partition(":")[2]) <= 5


async def test_E04_cluster_mode_is_refused_with_a_clear_sentence() -> None:
    """Red without the check of `redis_mode` in RedisReader._connect."""
    with running("--cluster-enabled", "yes") as server:
        reader = RedisReader(server.url, POOL)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.4):
                await anext(aiter(reader.records()))
        assert "cluster mode is not supported" in reader.last_error
        await reader.close()


async def test_E05_a_demoted_server_is_a_store_error_until_it_is_promoted(
    server: RedisServer,
) -> None:
    """Red when ReadOnlyError is not a StoreError in RedisWriter._run."""
    async with running_chain(Chain(server.url)) as chain:
        await until(chain.precise)
        server.command("REPLICAOF", "127.0.0.1", "1")
        await until(lambda: any("READONLY" in text.upper() for text in chain.failures))
        assert chain.state.ready(time.monotonic())
        server.command("REPLICAOF", "NO", "ONE")
        await until(chain.precise)


async def test_E06_odd_passwords_work_and_never_show() -> None:
    """Red when the password is put into the URL unquoted, or into an error's text."""
    secret = "p@:/#%?x"
    with running("--requirepass", secret) as server:
        async with running_chain(Chain(server.url, password=secret)) as chain:
            await until(chain.precise)
        async with running_chain(Chain(server.url, password="wrong" + secret)) as chain:
            await until(lambda: bool(chain.failures and chain.reader.last_error))
            assert chain.stepped_down()
            for text in (*chain.failures, chain.reader.last_error):
                assert secret not in text


async def test_E06_the_least_rights_of_the_docstring_are_enough(server: RedisServer) -> None:
    """Red when a script or the reader uses a command that the documented ACL does not name."""
    documented = " ".join((redis_log.__doc__ or "").split())
    for user in ("Writers", "Readers"):
        named = re.search(rf"{user}: `(.*?)`", documented)
        assert named is not None
        rights = named[1].replace("<pool>", POOL).replace("%R~", "~")  # %R~ is Redis 7's
        server.command("ACL", "SETUSER", user, "on", ">pw", *rights.split())
    chain = Chain(server.url)
    await chain.writer.close()
    await chain.reader.close()
    chain.writer = RedisWriter(server.url.replace("//", "//Writers:pw@"), POOL)
    chain.reader = RedisReader(server.url.replace("//", "//Readers:pw@"), POOL)
    async with running_chain(chain):
        await until(chain.precise)
        assert chain.failures == []
        stranger = RedisWriter(server.url.replace("//", "//Writers:pw@"), PoolId("other"))
        with pytest.raises(StoreError, match=r"(?i)permission"):
            await stranger.claim(Incarnation(EndpointId(PoolId("other"), "a", 1), 1), 1)
        await stranger.close()


async def test_E07_a_full_redis_loses_the_log_and_nothing_else() -> None:
    """Red when an OOM answer is not a StoreError: the writer's task would die."""
    with running() as server:
        async with running_chain(Chain(server.url)) as chain:
            await until(chain.precise)
            server.command("CONFIG", "SET", "maxmemory", "1")
            await until(lambda: bool(chain.failures))
            assert "maxmemory" in chain.failures[0]
            await until(chain.stepped_down)
            server.command("CONFIG", "SET", "maxmemory", "0")
            await until(chain.precise)


async def test_E09_no_command_walks_the_keys(server: RedisServer) -> None:
    """Red when anything asks for KEYS, SCAN, SMEMBERS or HGETALL."""
    async with running_chain(Chain(server.url)) as chain:
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
    """Red without the reload on NOSCRIPT in RedisWriter._run (SCRIPT FLUSH), or when a lost lease
    is not a StoreError (FLUSHALL)."""
    async with running_chain(Chain(server.url)) as chain:
        await until(chain.precise)
        chain.held = (*KEYS, 5)
        assert not chain.precise()
        server.command(*words)
        if words[0] != "FLUSHALL":
            await asyncio.sleep(0.2)
            assert chain.failures == []
            chain.held = KEYS
        await until(chain.precise)
        assert chain.state.counts["feed-gap"] == 0


async def test_E10_a_restarted_empty_redis_is_read_from_its_beginning(
    server: RedisServer,
) -> None:
    """Red without `_restart` in RedisReader._connect when the run id is another: what the new
    server got before its ids passed our cursor would be missing, a full state among it."""

    def full_record(seq: int, *stored: int) -> bytes:
        return encode(
            Record(
                incarnation=Incarnation(A, 5),
                nonce=9,
                seq=seq,
                blocks=BlockChange(stored=stored, reset=seq == 1),
                status=EngineStatus(ready=True, events=True),
            )
        )

    chain = Chain(server.url)
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(chain.read())
        server.command("XADD", log_key(POOL), "1000-0", "r", "before the restart")
        await until(lambda: chain.reader._cursor == b"1000-0")
        server.restart()
        server.command("XADD", log_key(POOL), "999-0", "r", full_record(1, *KEYS[:2]))
        server.command("XADD", log_key(POOL), "1001-0", "r", full_record(2, *KEYS[2:]))
        await until(chain.precise)
        reading.cancel()
    assert chain.reader.counts["restarts"] == 1
    assert chain.resumed == 1
    await chain.reader.close()
    await chain.writer.close()


async def test_E10_a_stream_that_went_back_under_a_living_connection_is_noticed(
    server: RedisServer,
) -> None:
    """Red without the look at the last id (`_went_back`) when a read came back empty."""
    async with running_chain(Chain(server.url)) as chain:
        await until(chain.precise)
        server.command("XADD", log_key(POOL), FAR_FUTURE, "r", "somebody with a fast clock")
        await until(lambda: chain.reader._cursor >= FAR_FUTURE.encode())
        chain.held = (*KEYS, 5)
        server.command("FLUSHALL")
        await until(chain.precise)
        assert chain.reader.counts["restarts"] >= 1
        assert chain.reader.counts["reconnects"] == 0


async def test_E11_pools_on_one_redis_do_not_touch_each_other(server: RedisServer) -> None:
    """Red when the pool is not part of the keys."""
    one, two = Chain(server.url, PoolId("one")), Chain(server.url, PoolId("two"))
    two.held = (7, 8)
    async with running_chain(one), running_chain(two):
        await until(lambda: one.precise() and two.precise())
        one.held = (9,)
        server.command("DEL", "epp:{one:0}:lease:one|a|8000")
        await until(one.precise)
        assert two.precise()
        assert two.failures == []
        assert one.state.counts["record-no-member"] == 0


async def test_E12_a_frozen_redis_blocks_nobody_and_is_heard_again(server: RedisServer) -> None:
    """Red without the time limits: of the writer's call, and of the reader's read."""
    async with running_chain(Chain(server.url)) as chain:
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


async def test_E13_odd_entries_are_passed_over_and_counted(server: RedisServer) -> None:
    """Red when `_read` believes that every entry has a field `r`, or `apply` that it parses."""
    async with running_chain(Chain(server.url)) as chain:
        await until(chain.precise)
        server.command("XADD", log_key(POOL), "*", "x", "y")
        server.command("XADD", log_key(POOL), "*", "r", "not a record")
        await until(lambda: chain.reader.counts["odd-entries"] == 1)
        await until(lambda: chain.state.counts["record-damaged"] == 1)
        assert chain.precise()


async def test_E13_a_key_of_another_type_is_an_error_that_heals(server: RedisServer) -> None:
    """Red when a ResponseError ends the reader's or the writer's task."""
    server.command("SET", log_key(POOL), "oops")
    async with running_chain(Chain(server.url)) as chain:
        await until(lambda: bool(chain.failures) and chain.reader.counts["errors"] > 0)
        server.command("DEL", log_key(POOL))
        await until(chain.precise)
