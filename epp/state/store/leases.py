"""Named leases in Redis: `epp:{<pool>:0}:elected:<name>` holds who has it, for as long as that.

One script each way. A holder's name is of one life of one replica, so that it fences an earlier
life as a writer's nonce does: only who is named there can renew the lease or give it back.

Least rights (Redis ACL): `~epp:{<pool>:0}:elected:* +evalsha +script|load +get +set +del`.
"""

from contextlib import suppress
from typing import Any

from redis.asyncio import Redis

from epp.errors import StoreError
from epp.framework import PoolId

from . import layout
from .link import CALL_S, Link
from .place import Access, Place
from .scripts import Scripts

_TAKE = """
-- KEYS elected  ARGV holder, lease ms
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
_RELEASE = """
-- KEYS elected  ARGV holder
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 1
"""


class RedisRegister:
    """A Register over a connection of its own. Calls end within `call_s`."""

    def __init__(
        self, access: Access, pool: PoolId, holder: str, *, call_s: float = CALL_S
    ) -> None:
        """`holder`: a name that no other life of any replica has."""
        self._pool = pool
        self._holder = holder
        self._call_s = call_s
        self._link = Link(Place(access, layout.elected_key(pool, ""), call_s))
        self._scripts = Scripts()

    async def take(self, name: str, lease_s: float) -> bool:
        return bool(await self._run(_TAKE, name, str(round(1000 * lease_s))) == 1)

    async def release(self, name: str) -> None:
        with suppress(StoreError):  # the lease ends by itself
            await self._run(_RELEASE, name)

    async def close(self) -> None:
        self._link.drop()

    async def _run(self, script: str, name: str, *arguments: str) -> Any:
        keys = [layout.elected_key(self._pool, name)]

        def run(client: Redis) -> Any:
            return self._scripts.run(client, script, keys, [self._holder, *arguments])

        return await self._link.call(run, self._call_s)
