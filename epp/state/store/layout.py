"""Where a pool's log stands in Redis: the names of its keys, and how long they live. Pure.

All keys of one stream share a cluster slot, and all have a time to live. With tag `{<pool>:<n>}`
for stream n:

`epp:<tag>:log`                  stream of entries with fields `e`, an endpoint, and `r`, a Record
`epp:<tag>:lease:<endpoint>`     hash: who may write (`start`, `nonce`)
`epp:<tag>:snapshot:<endpoint>`  hash: `start`, `nonce`, `cursor` in the log, `parts`, `memory`
`epp:<tag>:writers`              sorted set: endpoints by the time in the log of their snapshots
`epp:<tag>:streams`              how many streams this pool's writers were told to use
`epp:{<pool>:0}:sums…`           what each replica has reserved; see `board`
`epp:{<pool>:0}:elected:<name>`  which replica does what one does for all; see `leases`

Least rights (Redis ACL):
Writers: `~epp:{<pool>:*}:* +evalsha +script|load +hmget +hset +hdel +get +set +pexpire
+exists +xadd +xtrim +xlen +xrevrange +zadd +zrange +zrem +zcard +time`.
Readers: `%R~epp:{<pool>:*}:* ~epp:{<pool>:0}:sums* ~epp:{<pool>:0}:elected:* +xread +xrange
+xinfo|stream +info +hmget +get +evalsha +script|load +time +hset +hdel +zadd +zrem +zrangebyscore
+pexpire +set +del`; pickers that write for engines without a sidecar have a writer's rights too.
"""

import zlib

from epp.framework import EndpointId, PoolId

RETAIN_MS = 60_000
"""A record stays in the log for at least so long, unless `MAX_ENTRIES` are reached first."""
MAX_ENTRIES = 500_000
"""Records in one stream."""
LEASE_MS = 10_000
TTL_MS = 600_000
"""Logs and snapshots that nobody writes any more are gone after this."""


def log_key(pool: PoolId, stream: int = 0) -> str:
    return f"epp:{{{pool}:{stream}}}:log"


def writers_key(pool: PoolId, stream: int = 0) -> str:
    return f"epp:{{{pool}:{stream}}}:writers"


def streams_key(pool: PoolId, stream: int = 0) -> str:
    return f"epp:{{{pool}:{stream}}}:streams"


def lease_key(endpoint: EndpointId, stream: int = 0) -> str:
    return f"epp:{{{endpoint.pool}:{stream}}}:lease:{endpoint}"


def snapshot_key(endpoint: EndpointId, stream: int = 0) -> str:
    return f"epp:{{{endpoint.pool}:{stream}}}:snapshot:{endpoint}"


def elected_key(pool: PoolId, name: str) -> str:
    return f"epp:{{{pool}:0}}:elected:{name}"


def stream_of(endpoint: EndpointId, streams: int) -> int:
    """Which of the pool's streams has an endpoint's records."""
    return zlib.crc32(str(endpoint).encode()) % streams


def entry_id(text: bytes | str) -> tuple[int, int]:
    """A stream's id as numbers that compare. Raises ValueError."""
    plain = text.decode() if isinstance(text, bytes) else text
    milliseconds, _, number = plain.partition("-")
    return int(milliseconds), int(number or 0)
