"""A replica hears one stream of the log: what came together is applied in portions.

A portion is a few milliseconds of work, however many records came, so that decisions are made in
between (fault A20).
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence

from .pool import PoolState
from .store import Reader, Stream

PORTION_BYTES = 40_000
"""Some two milliseconds of work."""
RECORD_BYTES = 1_000
"""A record, whatever is in it, takes as long as so many bytes of block keys."""


async def follow(
    pool: PoolState, reader: Reader, stream: Stream, *, clock: Callable[[], float]
) -> None:
    """Apply what writers append, and read again what is missing. Runs until it is cancelled."""
    async for records in stream.records():
        came = clock()
        for some in portions(records):
            now = clock()
            pool.apply_all(some, now, behind_s=stream.behind_s + (now - came))
            await asyncio.sleep(0)
        for endpoint in pool.lost(clock()):
            reader.stream_of(endpoint).reread([endpoint])


def portions(records: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Successive records, together up to `PORTION_BYTES`; a longer one alone."""
    start, room = 0, PORTION_BYTES
    for at, record in enumerate(records):
        cost = len(record) + RECORD_BYTES
        if cost > room and at > start:
            yield records[start:at]
            start, room = at, PORTION_BYTES
        room -= cost
    if start < len(records):
        yield records[start:]
