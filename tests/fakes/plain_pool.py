"""Replicas in one process, which elect by a Redis who writes for engines without sidecars."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp

from epp.framework import EndpointId, PoolId, Rung, Source
from epp.sim.serving.server import EngineServer
from epp.sim.tokenizer import encode
from epp.state.blocks import PLAIN, seed_of, token_keys
from epp.state.endpoints import Endpoints, Member
from epp.state.event_ports import EventPorts
from epp.state.hearing import follow
from epp.state.leases import PLAIN_WRITER, Alone, Elector
from epp.state.load import LoadBook
from epp.state.pool import PoolState
from epp.state.prefix.index import PrefixIndex
from epp.state.prefix.predicted import PredictedIndex
from epp.state.scrape import Scraper, ScrapeSettings
from epp.state.store.leases import RedisRegister
from epp.state.store.place import read_access
from epp.state.store.redis_reader import RedisReader
from epp.state.store.redis_writer import RedisWriter
from epp.state.writing.plain_pool import PlainWriters
from epp.state.writing.publisher import Tempo
from tests.fakes.waiting import until

POOL = PoolId("ns/plain")
MODEL = "sim"
LEASE_S = 1.5
PROMPT = "The prefill worker computes the prompt and the decode worker pulls the blocks. " * 20
OTHER = "Another prompt altogether, of which nobody has ever heard before this very moment. " * 20
REPLAY = {"kv_replay": "tcp://127.0.0.1:0"}
"""Setting of an engine that can say its last messages again."""


def whole(prompt: str) -> int:
    """Own blocks of a prompt of which engine blocks of 16 tokens hold all but the last one."""
    return (len(encode(prompt)) - 1) // 16 * 16 // 64


async def ask(engine: EngineServer, prompt: str) -> None:
    """Let the engine compute, and so hold, a prompt."""
    body = {"prompt": prompt, "max_tokens": 1}
    async with (
        aiohttp.ClientSession(engine.url) as http,
        http.post("/v1/completions", json=body) as answer,
    ):
        assert answer.status == 200, await answer.text()


def endpoint_of(engine: EngineServer) -> EndpointId:
    return EndpointId(POOL, engine.settings.name, engine.port)


def member_of(engine: EngineServer, *, sidecar: bool = False) -> Member:
    """As an endpoints file with `kvEventsPort` and `kvReplayPort` has it."""
    return Member(
        id=endpoint_of(engine),
        address=f"127.0.0.1:{engine.port}",
        metrics_url=f"{engine.url}/metrics",
        has_sidecar=sidecar,
        events=EventPorts(
            events=_port(engine.kv_events_endpoint), replay=_port(engine.kv_replay_endpoint)
        ),
    )


def _port(endpoint: str | None) -> int:
    return 0 if endpoint is None else int(endpoint.rpartition(":")[2])


def keys_of(prompt: str) -> list[int]:
    return token_keys(encode(prompt), seed_of(MODEL))


@dataclass
class Replica:
    """Its pool, and the part of it that writes."""

    name: str
    pool: PoolState
    plain: PlainWriters
    elector: Elector
    reader: RedisReader
    scraper: Scraper
    tasks: list[asyncio.Task[None]]

    def matched(self, engine: EngineServer, prompt: str) -> int:
        """Leading own blocks that decisions believe by the engine's word; -1: none is believed."""
        keys, now, endpoint = keys_of(prompt), time.monotonic(), endpoint_of(engine)
        found = self.pool.candidates(keys, block_tokens=64, prompt_tokens=10**6, now=now)
        if self.pool.rung(endpoint, now) is not Rung.PRECISE:
            return -1
        (one,) = (one for one in found if one.id == endpoint)
        return one.match.tokens // 64 if one.match.source is Source.PRECISE else 0

    async def knows(self, engine: EngineServer, prompt: str, blocks: int | None = None) -> None:
        """Wait until it believes that the engine holds so many blocks; None: all that are whole."""
        wanted = whole(prompt) if blocks is None else blocks
        await until(lambda: self.matched(engine, prompt) == wanted, within_s=10)

    def kill(self) -> None:
        """As by kill -9: no lease is given back, no last word said."""
        register = self.elector._register

        async def release(_: str) -> None:
            """Nothing is said."""

        register.release = release  # type: ignore[method-assign]  # whatever ends the task
        for task in self.tasks:
            task.cancel()


@asynccontextmanager
async def replicas(
    url: str,
    members: Sequence[Member],
    *names: str,
    most: int = 512,
    convinced: bool = False,
    snapshot_s: float = 2.0,
) -> AsyncIterator[list[Replica]]:
    """They run until the end of the context, or until they are killed. `convinced`: each of them
    believes that it is elected."""
    access = read_access(url)
    made: list[Replica] = []
    async with asyncio.TaskGroup() as group:
        for name in names:
            pool = PoolState(
                POOL, Endpoints(), PrefixIndex(10_000), PredictedIndex(10_000, 60.0), LoadBook()
            )
            pool.replace(members, time.monotonic())
            elector = Elector(
                Alone() if convinced else RedisRegister(access, POOL, name, call_s=0.5),
                PLAIN_WRITER,
                clock=time.monotonic,
                rng=random.Random(name),
                lease_s=LEASE_S,
            )
            plain = PlainWriters(
                pool,
                elector,
                ports=EventPorts(),
                naming=PLAIN,
                open_writer=lambda: RedisWriter(access, POOL),
                clock=time.monotonic,
                wall_ms=lambda: time.time_ns() // 1_000_000,
                rng=random.Random(name),
                tempo=Tempo(snapshot_s=snapshot_s),
                most=most,
            )
            scraper = Scraper(plain, settings=ScrapeSettings(interval_s=0.1, timeout_s=0.08))
            ids = [member.id for member in members]
            reader = RedisReader(access, POOL, members=lambda ids=ids: ids)
            one = Replica(name, pool, plain, elector, reader, scraper, [])
            one.tasks = [
                group.create_task(work)
                for work in (
                    plain.run(),
                    scraper.run(),
                    follow(pool, reader, reader.streams[0], clock=time.monotonic),
                )
            ]
            made.append(one)
        try:
            yield made
        finally:
            for one in made:
                for task in one.tasks:
                    task.cancel()
    for one in made:
        await one.reader.close()
