"""Replicas' reserved sums in Redis: a board that forgets whoever does not repeat himself.

Two keys of a pool, on the log's cluster slot: `epp:{<pool>:0}:sums` is a hash of serialised
ReplicaSums by replica, `epp:{<pool>:0}:sums:until` says until when each is believed, by Redis' own
clock. Both live no longer than a few leases. One script each way, so that no reader sees half.

Least rights (Redis ACL): `~epp:{<pool>:0}:sums* +evalsha +script|load +time +hset +hdel +hmget
+zadd +zrem +zrangebyscore +pexpire`.
"""

import asyncio
from typing import Any, cast

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, RedisError

from epp.errors import StoreError
from epp.framework import PoolId
from epp.state.sums import LEASE_S, ReplicaSums, SumsError, encode, parse

MOST_REPLICAS = 256
"""Of those whose lease has not run out; the ones that end first are not read."""
_LEASE_MS = int(1000 * LEASE_S)
_NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""
_PUBLISH = (
    _NOW
    + """
for _, over in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now)) do
  redis.call('ZREM', KEYS[2], over)
  redis.call('HDEL', KEYS[1], over)
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[2], now + ARGV[3], ARGV[1])
redis.call('PEXPIRE', KEYS[1], 4 * ARGV[3])
redis.call('PEXPIRE', KEYS[2], 4 * ARGV[3])
return {}
"""
)
_OTHERS = (
    _NOW
    + """
local names = redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. string.format('%.0f', now), '+inf')
local first = math.max(1, #names - ARGV[2] + 1)
local found = {}
for at = first, #names do
  if names[at] ~= ARGV[1] then
    local said = redis.call('HMGET', KEYS[1], names[at])[1]
    if said then found[#found + 1] = said end
  end
end
return found
"""
)
_WITHDRAW = """
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('HDEL', KEYS[1], ARGV[1])
return {}
"""


class RedisBoard:
    """A SumsBoard over a client of its own. Every call ends within `call_s`."""

    def __init__(self, client: Redis, pool: PoolId, name: str, *, call_s: float = 1.0) -> None:
        """`name`: of this life of this replica, as in its sums."""
        self.odd = 0
        """Sums that could not be read."""
        self._client = client
        self._name = name
        self._call_s = call_s
        key = f"epp:{{{pool}:0}}:sums"
        self._keys = (key, f"{key}:until")
        self._shas: dict[str, str] = {}

    async def publish(self, sums: ReplicaSums) -> None:
        await self._run(_PUBLISH, self._name, encode(sums), _LEASE_MS)

    async def others(self) -> list[ReplicaSums]:
        found: list[ReplicaSums] = []
        for said in await self._run(_OTHERS, self._name, MOST_REPLICAS):
            try:
                found.append(parse(cast("bytes", said)))
            except SumsError:
                self.odd += 1
        return found

    async def close(self) -> None:
        try:
            await self._run(_WITHDRAW, self._name)
        except StoreError:
            pass  # the lease ends it
        finally:
            await self._client.aclose()

    async def _run(self, script: str, *arguments: str | bytes | int) -> list[Any]:
        try:
            async with asyncio.timeout(self._call_s):
                return await self._evaluate(script, arguments)
        except (RedisError, OSError, TimeoutError) as error:
            await self._client.connection_pool.disconnect(inuse_connections=True)
            why = type(error).__name__
            raise StoreError(f"the replicas' board does not answer: {why}") from None

    async def _evaluate(self, script: str, arguments: tuple[str | bytes | int, ...]) -> list[Any]:
        """Loaded when Redis does not know it (any more)."""
        sha = self._shas.get(script) or await self._load(script)
        given = (*self._keys, *arguments)
        try:
            found = await self._client.evalsha(sha, len(self._keys), *given)
        except NoScriptError:
            found = await self._client.evalsha(await self._load(script), len(self._keys), *given)
        return cast("list[Any]", found)

    async def _load(self, script: str) -> str:
        self._shas[script] = str(await self._client.script_load(script))
        return self._shas[script]
