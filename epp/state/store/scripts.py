"""Every write to Redis is one of these scripts, so that a fenced writer can never slip in between.

A script that writes for an engine compares incarnation and nonce with the lease in the same step.
Numbers of 64 bits travel as text: Lua's own have 53.
"""

from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import NoScriptError

DONE, FENCED, NO_LEASE, OTHER_STREAMS = 1, 0, -1, -2
"""First number that `CLAIM`, `APPEND` and `SAVE` answer."""

CLAIM = """
-- KEYS lease, writers, streams, log  ARGV start, nonce, lease ms, ttl ms, endpoint, streams
local told = redis.call('GET', KEYS[3])
if told and told ~= ARGV[6] then return {-2, told} end
local held = redis.call('HMGET', KEYS[1], 'start', 'nonce')
if held[1] and tonumber(held[1]) > tonumber(ARGV[1]) then return {0} end
redis.call('HSET', KEYS[1], 'start', ARGV[1], 'nonce', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('SET', KEYS[3], ARGV[6], 'PX', ARGV[3])
redis.call('ZADD', KEYS[2], 'NX', '+inf', ARGV[5])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
local last = redis.call('XREVRANGE', KEYS[4], '+', '-', 'COUNT', 1)
return {1, last[1] and last[1][1] or '0-0', redis.call('ZCARD', KEYS[2])}
"""

APPEND = """
-- KEYS lease, writers, streams, log
-- ARGV start, nonce, lease ms, ttl ms, endpoint, record, retain ms, most entries
local held = redis.call('HMGET', KEYS[1], 'start', 'nonce')
if not held[1] then return {-1} end
if held[1] ~= ARGV[1] or held[2] ~= ARGV[2] then return {0} end
local time = redis.call('TIME')
local oldest = math.max(0, time[1] * 1000 + math.floor(time[2] / 1000) - ARGV[7])
for _ = 1, 16 do
  local first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
  if not first[1] or tonumber(first[2]) >= oldest then break end
  local lease = string.sub(KEYS[1], 1, -1 - #ARGV[5]) .. first[1]
  if redis.call('EXISTS', lease) == 1 then
    oldest = tonumber(first[2])
    break
  end
  redis.call('ZREM', KEYS[2], first[1])
end
local id = redis.call('XADD', KEYS[4], 'MINID', '~', string.format('%.0f', oldest), '*',
  'e', ARGV[5], 'r', ARGV[6])
if redis.call('XLEN', KEYS[4]) > tonumber(ARGV[8]) then
  redis.call('XTRIM', KEYS[4], 'MAXLEN', '~', ARGV[8])
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
redis.call('PEXPIRE', KEYS[3], ARGV[3])
redis.call('PEXPIRE', KEYS[4], ARGV[4])
return {1, id, redis.call('ZCARD', KEYS[2])}
"""

SAVE = """
-- KEYS lease, writers, snapshot
-- ARGV start, nonce, lease ms, ttl ms, endpoint, cursor, parts, memory
local held = redis.call('HMGET', KEYS[1], 'start', 'nonce')
if not held[1] then return {-1} end
if held[1] ~= ARGV[1] or held[2] ~= ARGV[2] then return {0} end
redis.call('HSET', KEYS[3], 'start', ARGV[1], 'nonce', ARGV[2], 'cursor', ARGV[6],
  'parts', ARGV[7], 'memory', ARGV[8])
redis.call('PEXPIRE', KEYS[3], ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('ZADD', KEYS[2], string.match(ARGV[6], '^%d+'), ARGV[5])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
return {1}
"""

RECALL = """
-- KEYS snapshot  ARGV start
local kept = redis.call('HMGET', KEYS[1], 'start', 'memory')
if kept[1] ~= ARGV[1] then return false end
return kept[2]
"""


class Scripts:
    """Runs scripts by their digest; loads one when Redis does not know it (any more)."""

    def __init__(self) -> None:
        self._digests: dict[str, str] = {}

    async def run(
        self,
        client: Redis,
        script: str,
        keys: Sequence[str],
        arguments: Sequence[int | str | bytes],
    ) -> Any:
        """Raises what the client raises."""
        digest = self._digests.get(script) or await self._load(client, script)
        try:
            return await client.evalsha(digest, len(keys), *keys, *arguments)
        except NoScriptError:
            digest = await self._load(client, script)
            return await client.evalsha(digest, len(keys), *keys, *arguments)

    async def _load(self, client: Redis, script: str) -> str:
        digest = await client.script_load(script)
        self._digests[script] = digest.decode() if isinstance(digest, bytes) else str(digest)
        return self._digests[script]
