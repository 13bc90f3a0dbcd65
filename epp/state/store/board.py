"""Replicas' reserved sums in Redis: a board that forgets whoever does not repeat himself.

Two keys of a pool, on the log's cluster slot: `epp:{<pool>:0}:sums` is a hash of serialised
ReplicaSums by replica, `epp:{<pool>:0}:sums:until` says until when each is believed, by Redis' own
clock. Both live no longer than a few leases. One script each way, so that no reader sees half.

Least rights (Redis ACL): `~epp:{<pool>:0}:sums* +evalsha +script|load +time +hset +hdel +hmget
+zadd +zrem +zrangebyscore +pexpire`.
"""

from collections import Counter
from typing import Any, cast

from redis.asyncio import Redis

from epp.errors import StoreError
from epp.framework import PoolId
from epp.state.sums import LEASE_S, ReplicaSums, SumsError, encode, parse

from .link import CALL_S, Link
from .place import Access, Place
from .scripts import Scripts

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
    """A SumsBoard over a connection of its own, owned by one task. Calls end within `call_s`."""

    def __init__(self, access: Access, pool: PoolId, name: str, *, call_s: float = CALL_S) -> None:
        """`name`: of this life of this replica, as in its sums."""
        self.counts: Counter[str] = Counter()
        """`odd`: sums that could not be read."""
        self._name = name
        self._call_s = call_s
        key = f"epp:{{{pool}:0}}:sums"
        self._keys = (key, f"{key}:until")
        self._link = Link(Place(access, key, call_s))
        self._scripts = Scripts()

    async def publish(self, sums: ReplicaSums) -> None:
        await self._run(_PUBLISH, self._name, encode(sums), _LEASE_MS)

    async def others(self) -> list[ReplicaSums]:
        found: list[ReplicaSums] = []
        for said in await self._run(_OTHERS, self._name, MOST_REPLICAS):
            try:
                found.append(parse(cast("bytes", said)))
            except SumsError:
                self.counts["odd"] += 1
        return found

    async def close(self) -> None:
        try:
            await self._run(_WITHDRAW, self._name)
        except StoreError:
            pass  # the lease ends it
        finally:
            self._link.drop()

    async def _run(self, script: str, *arguments: str | bytes | int) -> list[Any]:
        def run(client: Redis) -> Any:
            return self._scripts.run(client, script, self._keys, arguments)

        return cast("list[Any]", await self._link.call(run, self._call_s))
