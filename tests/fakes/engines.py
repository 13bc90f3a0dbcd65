"""Simulated engines for tests: quick, on free ports, with a tap on their KV events."""

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from epp.sim.kv import AllBlocksCleared, BlockRemoved, BlockStored
from epp.sim.serving.server import EngineServer, EngineSettings
from tests.timing import scaled

JOIN_S = 0.2
"""A subscription needs a moment to reach a PUB socket; what was sent before is lost."""


def quick_settings(**changes: Any) -> EngineSettings:
    """An engine that answers within milliseconds, on free ports."""
    defaults: dict[str, Any] = {
        "port": 0,
        "kv_events": "tcp://127.0.0.1:0",
        "decode_step_s": 0.001,
        "prefill_tokens_per_s": 1e6,
        "grace_s": 0.1,
    }
    return EngineSettings(**{**defaults, **changes})


@asynccontextmanager
async def running_engine(
    crash: Callable[[int], object] = os._exit, **changes: Any
) -> AsyncIterator[EngineServer]:
    """A quick engine; changes are fields of its settings, `crash` is what it ends itself with."""
    async with EngineServer(quick_settings(**changes), crash=crash) as server:
        yield server


_PROGRAM = """
import json, sys
import uvloop
from epp.sim.serving.server import EngineServer, EngineSettings, run

def ready(server: EngineServer) -> None:
    print(server.url, flush=True)

uvloop.run(run(EngineSettings(**json.loads(sys.argv[1])), ready))
"""


@asynccontextmanager
async def engine_process(**settings: Any) -> AsyncIterator[tuple[Process, str]]:
    """An engine in a process of its own, in which warnings are errors, and its URL."""
    given = json.dumps({"port": 0, "kv_events": "tcp://127.0.0.1:0", "grace_s": 0.1, **settings})
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", "-c", _PROGRAM, given), stdout=PIPE, stderr=PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(scaled(20)):
            line = await process.stdout.readline()
        yield process, line.decode().strip()
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@dataclass(frozen=True)
class Pair:
    """A prefill engine and a decode engine that can pull from it."""

    prefill: EngineServer
    decode: EngineServer

    def lease_ends(self) -> int:
        """Leases that ended unpulled; 0 in every test that does not mean it."""
        return self.prefill.driver.engine.pins.counters.expired


@asynccontextmanager
async def running_pair(
    prefill: dict[str, Any] | None = None, decode: dict[str, Any] | None = None, **both: Any
) -> AsyncIterator[Pair]:
    """Two quick engines that hand over KV; `both` are settings of both of them.

    A handshake that fails does so soon. The engines answer equally, and name blocks differently.
    """
    common: dict[str, Any] = {"handshake_s": scaled(0.25), "pull_setup_s": 0.001, **both}
    one = {"name": "prefill", "kv_role": "producer", **common, **(prefill or {})}
    other = {"name": "decode", "kv_role": "consumer", "hash_seed": 7, **common, **(decode or {})}
    async with running_engine(**one) as first, running_engine(**other) as second:
        yield Pair(first, second)


def prefill_body(body: dict[str, Any]) -> dict[str, Any]:
    """What a sidecar sends to the prefill engine in place of a client's body."""
    leg = {key: value for key, value in body.items() if key not in {"min_tokens", "stream_options"}}
    ask = {"do_remote_decode": True, "do_remote_prefill": False}
    one = {"max_tokens": 1, "max_completion_tokens": 1, "stream": False}
    return {**leg, **one, "kv_transfer_params": ask}


async def eventually(holds: Callable[[], bool], within_s: float = 2.0) -> None:
    """Wait until something holds; fails when it does not in time."""
    for _ in range(int(scaled(within_s) / 0.01)):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came true")


class Message(msgspec.Struct, frozen=True, array_like=True):
    """Payload of one message as a reader decodes it."""

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None


class EventTap:
    """Reads the KV events of one engine."""

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.subscribe(b"")
        self._socket.connect(endpoint)

    async def __aenter__(self) -> "EventTap":
        await asyncio.sleep(JOIN_S)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._socket.close()
        self._context.term()

    async def frames(self) -> list[bytes]:
        """The next message as it is on the wire."""
        async with asyncio.timeout(5):
            return list(await self._socket.recv_multipart())

    async def next(self) -> tuple[int, Message]:
        """Sequence number and decoded payload of the next message."""
        _, sequence, payload = await self.frames()
        return int.from_bytes(sequence, "big"), msgspec.msgpack.decode(payload, type=Message)

    async def waiting(self) -> list[tuple[int, Message]]:
        """Messages that are already on their way."""
        messages = []
        while await self._socket.poll(100):
            messages.append(await self.next())
        return messages
