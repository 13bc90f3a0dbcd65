"""The log as one Redis stream, written by all sidecars of a pool and read by every picker.

Keys of a pool, all on one cluster slot and all with a time to live:
`epp:{<pool>:0}:log` is the stream, its entries have one field `r` with a serialised Record;
`epp:{<pool>:0}:lease:<endpoint>` is a hash of the incarnation and nonce that may write.

A claim and an append are one Lua script each, so that a fenced writer can never slip in between. A
log entry lives for `RETAIN_MS` at least, unless `MAX_ENTRIES` are reached first. No SCAN, no key
per block. Nothing here is needed to serve: Redis may be away, slow, emptied or replaced at any
time, and everything climbs back by itself.

Least rights (Redis ACL). Writers: `~epp:{<pool>:0}:* +evalsha +script|load +hmget +hset +pexpire
+xadd +xlen +xtrim +time`. Readers: `%R~epp:{<pool>:0}:log +xread +xinfo|stream +info`.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, ClassVar, TypeVar, cast
from urllib.parse import urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError

from epp.errors import Fenced, StoreError
from epp.framework import EndpointId, Incarnation, PoolId

from . import Batch

RETAIN_MS = 60_000
MAX_ENTRIES = 500_000
LEASE_MS = 10_000
LOG_TTL_MS = 600_000
CALL_S = 1.0
"""A writer's call takes no longer, however slow Redis is."""
BLOCK_MS = 500
BATCH_ENTRIES = 500

T = TypeVar("T")

_CLAIM = """
local held = redis.call('HMGET', KEYS[1], 'start', 'nonce')
if held[1] and tonumber(held[1]) > tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'start', ARGV[1], 'nonce', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
"""
_APPEND = """
local held = redis.call('HMGET', KEYS[1], 'start', 'nonce')
if not held[1] then return -1 end
if held[1] ~= ARGV[1] or held[2] ~= ARGV[2] then return 0 end
local time = redis.call('TIME')
local oldest = math.max(0, time[1] * 1000 + math.floor(time[2] / 1000) - ARGV[5])
redis.call('XADD', KEYS[2], 'MINID', '~', string.format('%.0f', oldest), '*', 'r', ARGV[3])
if redis.call('XLEN', KEYS[2]) > tonumber(ARGV[7]) then
  redis.call('XTRIM', KEYS[2], 'MAXLEN', '~', ARGV[7])
end
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('PEXPIRE', KEYS[2], ARGV[6])
return 1
"""


def log_key(pool: PoolId) -> str:
    return f"epp:{{{pool}:0}}:log"


def lease_key(endpoint: EndpointId) -> str:
    return f"epp:{{{endpoint.pool}:0}}:lease:{endpoint}"


class RedisWriter:
    """Writer for one engine. Every call ends within a second; a cancelled one drops the line."""

    def __init__(
        self, url: str, pool: PoolId, *, password: str | None = None, call_s: float = CALL_S
    ) -> None:
        self._client = redis_client(url, password, call_s)
        self._where = _where(url)
        self._pool = pool
        self._call_s = call_s
        self._claimed: tuple[Incarnation, int] | None = None
        self._shas: dict[str, str] = {}

    async def claim(self, incarnation: Incarnation, nonce: int) -> None:
        self._claimed = None
        won = await self._run(
            _CLAIM,
            [lease_key(incarnation.endpoint)],
            [incarnation.start_ms, nonce, LEASE_MS],
        )
        if won != 1:
            raise Fenced("a later life of the engine has a writer")
        self._claimed = (incarnation, nonce)

    async def append(self, record: bytes) -> None:
        if self._claimed is None:
            raise StoreError("claim first: nothing may be appended without a lease")
        incarnation, nonce = self._claimed
        written = await self._run(
            _APPEND,
            [lease_key(incarnation.endpoint), log_key(self._pool)],
            [incarnation.start_ms, nonce, record, LEASE_MS, RETAIN_MS, LOG_TTL_MS, MAX_ENTRIES],
        )
        if written == 0:
            self._claimed = None
            raise Fenced("another writer, or a later life of the engine, took over")
        if written != 1:
            self._claimed = None
            raise StoreError("the lease is gone from Redis: it expired or Redis was emptied")

    async def close(self) -> None:
        await _closed(self._client)

    async def _run(self, script: str, keys: list[str], arguments: list[int | bytes]) -> int:
        """One script, loaded when Redis does not know it (any more)."""

        async def evaluate() -> int:
            sha = self._shas.get(script) or await self._load(script)
            try:
                result = await self._client.evalsha(sha, len(keys), *keys, *arguments)
            except NoScriptError:
                sha = await self._load(script)
                result = await self._client.evalsha(sha, len(keys), *keys, *arguments)
            return int(cast("int", result))

        try:
            async with asyncio.timeout(self._call_s):
                return await evaluate()
        except (RedisError, OSError, TimeoutError, ValueError, TypeError) as error:
            await _dropped(self._client)
            raise StoreError(f"Redis at {self._where}: {_brief(error)}") from error

    async def _load(self, script: str) -> str:
        sha = await self._client.script_load(script)
        self._shas[script] = sha.decode() if isinstance(sha, bytes) else str(sha)
        return self._shas[script]


class RedisReader:
    """Reader of one pool's log, from its oldest entry on.

    `counts` has what went wrong by a fixed set of words; `last_error` says it in a sentence,
    without secrets.
    """

    FIRST_PAUSE_S: ClassVar = 0.05
    LONGEST_PAUSE_S: ClassVar = 2.0

    def __init__(
        self,
        url: str,
        pool: PoolId,
        *,
        password: str | None = None,
        rng: random.Random | None = None,
        call_s: float = CALL_S,
    ) -> None:
        self.counts = {"errors": 0, "reconnects": 0, "restarts": 0, "odd-entries": 0}
        self.last_error = ""
        self._client = redis_client(url, password, call_s + BLOCK_MS / 1000)
        self._where = _where(url)
        self._key = log_key(pool)
        self._rng = rng or random.Random()
        self._call_s = call_s
        self._connected = False
        self._cursor = b"0-0"
        self._server = b""
        self._closing = False

    @property
    def connected(self) -> bool:
        """Whether the last call to Redis worked."""
        return self._connected

    async def records(self) -> AsyncIterator[Batch]:
        pause = self.FIRST_PAUSE_S
        resumed = False
        while not self._closing:
            try:
                if not self._connected:
                    resumed |= await self._connect()
                    self._connected = True
                entries = await self._call(self._read, self._call_s + BLOCK_MS / 1000)
                if not entries and await self._call(self._went_back):
                    self._restart()
                    resumed = True
            except (RedisError, OSError, TimeoutError, StoreError, ValueError) as error:
                self._note(error)
                resumed = True
                await _dropped(self._client)
                await asyncio.sleep(pause * self._rng.uniform(0.5, 1.5))
                pause = min(self.LONGEST_PAUSE_S, pause * 2)
                continue
            pause = self.FIRST_PAUSE_S
            if entries or resumed:
                yield Batch(entries, resumed=resumed)
                resumed = False

    async def close(self) -> None:
        self._closing = True
        await _closed(self._client)

    async def _connect(self) -> bool:
        """Look at who answers. True when the log may not be the one that we read before."""
        info = await self._call(self._info)
        if info.get("redis_mode") == "cluster":
            raise StoreError("cluster mode is not supported; use a single server or Sentinel")
        server = f"{info.get('run_id')} {info.get('role')}".encode()
        before, self._server = self._server, server
        if not before:
            return False
        self.counts["reconnects"] += 1
        if before != server or await self._call(self._went_back):
            self._restart()
        return True

    def _restart(self) -> None:
        self.counts["restarts"] += 1
        self._cursor = b"0-0"

    async def _info(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for section in ("server", "replication"):
            out.update(await self._client.info(section))
        return out

    async def _read(self) -> list[bytes]:
        answer = await self._client.xread(
            {self._key: self._cursor}, count=BATCH_ENTRIES, block=BLOCK_MS
        )
        records: list[bytes] = []
        for _, entries in cast("list[tuple[bytes, list[tuple[bytes, Any]]]]", answer or []):
            for entry_id, fields in entries:
                self._cursor = entry_id
                record = fields.get(b"r") if isinstance(fields, dict) else None
                if isinstance(record, bytes):
                    records.append(record)
                else:
                    self.counts["odd-entries"] += 1
        return records

    async def _went_back(self) -> bool:
        """Whether the stream's last id is below our cursor: another stream under the same name."""
        if self._cursor == b"0-0":
            return False
        try:
            info = cast("dict[Any, Any]", await self._client.xinfo_stream(self._key))
        except ResponseError as error:
            if "no such key" in str(error):
                return True
            raise
        last = info.get("last-generated-id", info.get(b"last-generated-id", b"0-0"))
        return _id(last) < _id(self._cursor)

    async def _call(self, call: Callable[[], Awaitable[T]], limit_s: float | None = None) -> T:
        async with asyncio.timeout(limit_s or self._call_s):
            return await call()

    def _note(self, error: Exception) -> None:
        self._connected = False
        self.counts["errors"] += 1
        self.last_error = f"Redis at {self._where}: {_brief(error)}"


def redis_client(url: str, password: str | None, timeout_s: float) -> Redis:
    """One connection, no retries behind our back; callers put a time limit on every call.

    Not by `socket_timeout`: with one, redis-py sends through `asyncio.wait_for`, which on Python
    3.11 can swallow a cancellation, and a task that was cancelled would go on for ever.
    """
    return Redis.from_url(
        url,
        socket_timeout=None,
        socket_connect_timeout=timeout_s,
        socket_keepalive=True,
        retry=Retry(NoBackoff(), 0),
        max_connections=2,
        protocol=2,
        decode_responses=False,
        password=password,  # what the URL says goes first
    )


async def _dropped(client: Redis) -> None:
    """Close the connections; the next call opens a fresh one."""
    try:
        await client.connection_pool.disconnect(inuse_connections=True)
    except (RedisError, OSError):
        return


async def _closed(client: Redis) -> None:
    try:
        await client.aclose()
    except (RedisError, OSError):
        return


def _where(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.hostname or 'localhost'}:{parts.port or 6379}"


def _brief(error: Exception) -> str:
    text = str(error).splitlines()[0][:200] if str(error) else ""
    return f"{type(error).__name__} {text}".strip()


def _id(text: bytes | str) -> tuple[int, int]:
    plain = text.decode() if isinstance(text, bytes) else text
    milliseconds, _, number = plain.partition("-")
    return int(milliseconds), int(number or 0)
