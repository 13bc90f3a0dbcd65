"""A replica's way out of a pool's log in Redis: snapshots first, then the log, then its mirror.

The stream's id is only a cursor (DESIGN 6). Another server, another role, a last id below the
cursor or an oldest id above it mean that records may be missing. Then all snapshots are read again,
and of the log what followed on them; the sequence of each writer decides what that changes.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar, cast

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from epp.errors import StoreError
from epp.framework import EndpointId, PoolId

from . import layout
from .abreast import LONG_AGO_S, PROMPT_S
from .absence import Absence
from .frames import FrameBuffer
from .layout import entry_id
from .link import CALL_S, Link
from .place import Access, Place
from .redis_writer import SAVE_S

BLOCK_MS = 500
BATCH_ENTRIES = 500
READ_EVERY_S = 0.01
"""At least so long after a read that left nothing unread comes the next: what is said meanwhile
comes together, which costs Redis and us less. After a silence nothing waits."""
SNAPSHOTS_AT_ONCE = 8
"""Snapshots that are held in memory at the same time, one as large as an engine's cache allows."""
ERRORS = ("errors", "reconnects", "restarts", "holes", "odd-entries", "snapshots")
"""Words of `counts`."""

T = TypeVar("T")
Members = Callable[[], Iterable[EndpointId]]


class RedisReader:
    """Reads all streams of one pool. `members` are the endpoints whose snapshots are read at the
    start. `counts` has what went wrong, and `last_error` says it in a sentence without secrets."""

    def __init__(
        self,
        access: Access,
        pool: PoolId,
        *,
        members: Members,
        streams: int = 1,
        rng: random.Random | None = None,
        call_s: float = CALL_S,
    ) -> None:
        self.counts: Counter[str] = Counter(dict.fromkeys(ERRORS, 0))
        self._streams = tuple(
            RedisStream(
                Link(Place(access, layout.log_key(pool, number), call_s, once=True)),
                pool,
                (number, streams),
                members=members,
                counts=self.counts,
                rng=rng or random.Random(),
                call_s=call_s,
            )
            for number in range(streams)
        )

    @property
    def streams(self) -> Sequence["RedisStream"]:
        return self._streams

    def stream_of(self, endpoint: EndpointId) -> "RedisStream":
        return self._streams[layout.stream_of(endpoint, len(self._streams))]

    @property
    def last_error(self) -> str:
        """Of the streams that have one; empty when all is well."""
        return next((stream.last_error for stream in self._streams if stream.last_error), "")

    @property
    def connected(self) -> bool:
        return all(stream.listening_since is not None for stream in self._streams)

    @property
    def listening_since(self) -> float | None:
        times = [stream.listening_since for stream in self._streams]
        known = [time for time in times if time is not None]
        return max(known) if len(known) == len(times) else None

    @property
    def lag_s(self) -> float | None:
        return max(stream.lag_s for stream in self._streams) if self.connected else None

    @property
    def warm(self) -> bool:
        return all(stream.warm for stream in self._streams)

    @property
    def happened(self) -> Mapping[str, int]:
        return self.counts

    @property
    def held(self) -> Mapping[str, int]:
        """Redis holds it."""
        return {}

    async def close(self) -> None:
        for stream in self._streams:
            await stream.close()


class RedisStream:
    """One stream of the log. Several tasks would need several of these."""

    FIRST_PAUSE_S: ClassVar = 0.05
    LONGEST_PAUSE_S: ClassVar = 2.0

    def __init__(
        self,
        link: Link,
        pool: PoolId,
        number: tuple[int, int],
        *,
        members: Members,
        counts: Counter[str],
        rng: random.Random,
        call_s: float,
    ) -> None:
        """`number`: which stream of how many."""
        self.last_error = ""
        self.listening_since: float | None = None
        """By the loop's clock; None while Redis is out of reach."""
        self.warm = False
        """The snapshots have been read once."""
        self._link = link
        self._number, self._of = number
        self._key = layout.log_key(pool, self._number)
        self._streams_key = layout.streams_key(pool, self._number)
        self._members = members
        self._counts = counts
        self._rng = rng
        self._call_s = call_s
        self._cursor = b""
        """Entry that was read last; empty: begin with the snapshots."""
        self._server = ""
        self.behind_s = LONG_AGO_S
        self._abreast_at = float("-inf")
        """When a read began that left nothing unread."""
        self._abreast = False
        """The last one did."""
        self._wanted: set[EndpointId] = set()
        self._ahead: dict[bytes, tuple[int, int]] = {}
        """Endpoints whose snapshot was read and lies ahead of the cursor: it has in it what was
        said up to there, also by writers that were replaced long before it."""
        self._closing = False
        self._absence = Absence(lambda: asyncio.get_running_loop().time(), stream=self._number)

    @property
    def lag_s(self) -> float:
        """See `Reader`; at most `LONG_AGO_S`."""
        if self._abreast:
            return 0.0
        return min(LONG_AGO_S, asyncio.get_running_loop().time() - self._abreast_at)

    def reread(self, endpoints: Iterable[EndpointId]) -> None:
        self._wanted.update(endpoints)

    async def records(self) -> AsyncIterator[list[bytes]]:
        pause = self.FIRST_PAUSE_S
        while not self._closing:
            try:
                if self.listening_since is None:
                    await self._connect()
                while self._wanted:
                    self.behind_s = LONG_AGO_S
                    async for batch in self._reread():
                        yield batch
                self.warm = True
                entries = await self._next()
                if not entries and await self._call(self._went_back):
                    await self._begin_again()
            except StoreError as error:
                self.listening_since = None
                self.last_error = str(error)
                self._counts["errors"] += 1
                self._absence.failed(self.last_error)
                await asyncio.sleep(pause * self._rng.uniform(0.5, 1.5))
                pause = min(self.LONGEST_PAUSE_S, pause * 2)
                continue
            pause = self.FIRST_PAUSE_S
            self._absence.answered()
            if entries:
                yield entries

    async def _next(self) -> list[bytes]:
        """What was said since the last read."""
        loop = asyncio.get_running_loop()
        if self._abreast and loop.time() < self._abreast_at + READ_EVERY_S:
            await asyncio.sleep(self._abreast_at + READ_EVERY_S - loop.time())
        began = loop.time()
        entries = await self._call(self._read, self._call_s + BLOCK_MS / 1000)
        waited = loop.time() - self._abreast_at
        self.behind_s = 0.0 if waited <= PROMPT_S else min(waited, LONG_AGO_S)
        self._abreast = len(entries) < BATCH_ENTRIES
        if self._abreast:
            self._abreast_at = began
        return entries

    async def close(self) -> None:
        self._closing = True
        self._link.drop()

    async def _connect(self) -> None:
        """Look at who answers, and whether records may have been missed meanwhile."""
        info = await self._call(self._info)
        told = await self._call(lambda client: client.get(self._streams_key))
        if told is not None and told != str(self._of).encode():
            word = _bytes(told).decode(errors="replace")
            raise StoreError(
                f"this pool's log has {word} streams, but we were told {self._of}: sidecars and "
                "pickers must agree"
            )
        server = f"{info.get('run_id')} {info.get('role')}"
        before, self._server = self._server, server
        if before:
            self._counts["reconnects"] += 1
        if before != server or await self._call(self._went_back):
            self._counts["restarts"] += bool(before)
            await self._begin_again()
        elif await self._call(self._has_hole):
            self._counts["holes"] += 1
            await self._begin_again()
        self.listening_since = asyncio.get_running_loop().time()
        self.last_error = ""

    async def _begin_again(self) -> None:
        """Read all snapshots, and go on behind the log's present end."""
        self._cursor = await self._call(self._last_id)
        self._ahead.clear()
        self.reread(
            endpoint
            for endpoint in self._members()
            if layout.stream_of(endpoint, self._of) == self._number
        )

    async def _reread(self) -> AsyncIterator[list[bytes]]:
        """Snapshots of those that are wanted, then what followed on them up to our cursor."""
        wanted, self._wanted = sorted(self._wanted, key=str), set()
        cursors: dict[bytes, tuple[int, int]] = {}
        try:
            for at in range(0, len(wanted), SNAPSHOTS_AT_ONCE):
                some = wanted[at : at + SNAPSHOTS_AT_ONCE]
                found = await self._call(partial(self._saved, some), SAVE_S)
                places = {str(one).encode(): cursor for one, (cursor, _) in found.items()}
                await self._pass_over(places)
                cursors |= places
                for _, parts in found.values():
                    yield parts
            if not cursors:
                return
            after = min(cursors.values())
            while after < entry_id(self._cursor):
                page = await self._call(partial(self._range, after))
                if not page:
                    return
                after = entry_id(page[-1][0])
                yield [
                    record
                    for where, endpoint, record in page
                    if endpoint in cursors and entry_id(where) > cursors[endpoint]
                ]
        except StoreError:
            self._wanted.update(wanted)
            raise

    async def _pass_over(self, places: dict[bytes, tuple[int, int]]) -> None:
        """What was said before these snapshots is not to be read again behind them."""
        ahead = {one: at for one, at in places.items() if at > entry_id(self._cursor)}
        if ahead:
            # A snapshot from beyond the end is of another stream, and would hide what comes.
            end = entry_id(await self._call(self._last_id))
            self._ahead |= {one: at for one, at in ahead.items() if at <= end}

    async def _saved(
        self, endpoints: Sequence[EndpointId], client: Redis
    ) -> dict[EndpointId, tuple[tuple[int, int], list[bytes]]]:
        """Snapshots that are there: their cursor, and their parts."""
        async with client.pipeline(transaction=False) as pipe:
            for endpoint in endpoints:
                pipe.hmget(layout.snapshot_key(endpoint, self._number), "cursor", "parts")
            answers = await pipe.execute()
        found = {}
        for endpoint, (cursor, parts) in zip(endpoints, answers, strict=True):
            if cursor is None or parts is None:
                continue
            try:
                found[endpoint] = (entry_id(cursor), FrameBuffer().feed(parts))
                self._counts["snapshots"] += 1
            except (StoreError, ValueError):
                self._counts["odd-entries"] += 1
        return found

    async def _range(
        self, after: tuple[int, int], client: Redis
    ) -> list[tuple[bytes, bytes, bytes]]:
        """A page of the log: id, endpoint and record of each entry."""
        page = await client.xrange(
            self._key, f"({after[0]}-{after[1]}", self._cursor, count=BATCH_ENTRIES
        )
        return [
            (where, fields.get(b"e", b""), fields.get(b"r", b""))
            for where, fields in cast("list[tuple[bytes, dict[bytes, bytes]]]", page)
        ]

    async def _read(self, client: Redis) -> list[bytes]:
        answer = await client.xread({self._key: self._cursor}, count=BATCH_ENTRIES, block=BLOCK_MS)
        records: list[bytes] = []
        for _, entries in cast("list[tuple[bytes, list[tuple[bytes, Any]]]]", answer or []):
            for where, fields in entries:
                self._cursor = where
                record = fields.get(b"r") if isinstance(fields, dict) else None
                if self._ahead and record and self._is_known(where, fields.get(b"e", b"")):
                    continue
                if isinstance(record, bytes):
                    records.append(record)
                else:
                    self._counts["odd-entries"] += 1
        return records

    def _is_known(self, where: bytes, endpoint: bytes) -> bool:
        """Whether a snapshot that was read has this entry in it."""
        ahead = self._ahead.get(endpoint)
        if ahead is not None and entry_id(where) > ahead:
            del self._ahead[endpoint]
            return False
        return ahead is not None

    async def _info(self, client: Redis) -> dict[str, Any]:
        return {**await client.info("server"), **await client.info("replication")}

    async def _last_id(self, client: Redis) -> bytes:
        info = await _stream_info(client, self._key)
        return b"0-0" if info is None else _bytes(info["last-generated-id"])

    async def _went_back(self, client: Redis) -> bool:
        """Whether the stream's last id is below our cursor: another stream under the same name."""
        if self._cursor in {b"", b"0-0"}:
            return not self._cursor
        return entry_id(await self._last_id(client)) < entry_id(self._cursor)

    async def _has_hole(self, client: Redis) -> bool:
        """Whether entries behind our cursor were trimmed before we read them."""
        info = await _stream_info(client, self._key)
        first = None if info is None else info.get("first-entry")
        return first is not None and entry_id(first[0]) > entry_id(self._cursor) > (0, 0)

    async def _call(self, use: Callable[[Redis], Awaitable[T]], limit_s: float | None = None) -> T:
        return await self._link.call(use, limit_s or self._call_s)


async def _stream_info(client: Redis, key: str) -> dict[str, Any] | None:
    """None where there is no such stream."""
    try:
        info = await client.xinfo_stream(key)
    except ResponseError as error:
        if "no such key" in str(error):
            return None
        raise
    return {_bytes(name).decode(): value for name, value in cast("dict[Any, Any]", info).items()}


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
