"""The sidecar's way into a pool's log in Redis: keys as in `layout`, steps as in `scripts`."""

from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis

from epp.errors import Fenced, StoreError
from epp.framework import Incarnation, PoolId

from . import Saved, layout, scripts
from .frames import frame
from .link import CALL_S, Link
from .place import Access, Place

SAVE_S = 5.0
"""A snapshot of a large cache has megabytes."""
_CLAIM_FIRST = "claim first: nothing may be written without a lease"


class RedisWriter:
    """Writer for one engine. Every call ends within `call_s`, those with a snapshot in `SAVE_S`."""

    def __init__(
        self, access: Access, pool: PoolId, *, streams: int = 1, call_s: float = CALL_S
    ) -> None:
        self._access = access
        self._pool = pool
        self._streams = streams
        self._call_s = call_s
        self._scripts = scripts.Scripts()
        self._link: Link | None = None
        self._stream = 0
        self._claimed: tuple[Incarnation, int] | None = None
        self._cursor: bytes | str = "0-0"
        """Entry in the log that our last record is."""
        self._in_stream = 1

    @property
    def writers(self) -> int:
        return max(1, self._in_stream * self._streams)

    async def recall(self, incarnation: Incarnation) -> bytes | None:
        self._aim(incarnation)
        key = layout.snapshot_key(incarnation.endpoint, self._stream)
        memory = await self._run(scripts.RECALL, [key], [incarnation.start_ms], SAVE_S)
        return memory if isinstance(memory, bytes) and memory else None

    async def claim(self, incarnation: Incarnation, nonce: int) -> None:
        self._claimed = None
        self._aim(incarnation)
        answer = await self._step(
            scripts.CLAIM, (incarnation, nonce), self._log_keys(), [self._streams]
        )
        if answer[0] == scripts.OTHER_STREAMS:
            told = _text(answer[1])
            raise StoreError(
                f"this pool's log has {told} streams, but we were told {self._streams}: sidecars "
                "and pickers must agree"
            )
        if answer[0] != scripts.DONE:
            raise Fenced("a later life of the engine has a writer")
        self._cursor, self._in_stream = answer[1], int(answer[2])
        self._claimed = (incarnation, nonce)

    async def append(self, record: bytes) -> None:
        answer = await self._spoken(
            scripts.APPEND, self._log_keys(), [record, layout.RETAIN_MS, layout.MAX_ENTRIES]
        )
        self._cursor, self._in_stream = answer[1], int(answer[2])

    async def save(self, saved: Saved) -> None:
        if self._claimed is None:
            raise StoreError(_CLAIM_FIRST)
        key = layout.snapshot_key(self._claimed[0].endpoint, self._stream)
        parts = b"".join(frame(part) for part in saved.parts)
        await self._spoken(scripts.SAVE, [key], [self._cursor, parts, saved.memory], SAVE_S)

    async def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.drop()

    def _log_keys(self) -> list[str]:
        return [
            layout.streams_key(self._pool, self._stream),
            layout.log_key(self._pool, self._stream),
        ]

    def _aim(self, incarnation: Incarnation) -> None:
        """At the stream that has this endpoint's records."""
        stream = layout.stream_of(incarnation.endpoint, self._streams)
        if self._link is None or stream != self._stream:
            if self._link is not None:
                self._link.drop()
            self._stream = stream
            key = layout.log_key(self._pool, stream)
            self._link = Link(Place(self._access, key, self._call_s))

    async def _spoken(
        self,
        script: str,
        keys: list[str],
        arguments: list[int | str | bytes],
        limit_s: float | None = None,
    ) -> list[Any]:
        """A step that only the holder of the lease may make."""
        if self._claimed is None:
            raise StoreError(_CLAIM_FIRST)
        answer = await self._step(script, self._claimed, keys, arguments, limit_s)
        if answer[0] == scripts.DONE:
            return answer
        self._claimed = None
        if answer[0] == scripts.FENCED:
            raise Fenced("another writer, or a later life of the engine, took over")
        raise StoreError("the lease is gone from Redis: it expired or Redis was emptied")

    async def _step(
        self,
        script: str,
        who: tuple[Incarnation, int],
        keys: list[str],
        arguments: list[int | str | bytes],
        limit_s: float | None = None,
    ) -> list[Any]:
        (incarnation, nonce), stream = who, self._stream
        endpoint = incarnation.endpoint
        lease = layout.lease_key(endpoint, stream)
        keys = [lease, layout.writers_key(self._pool, stream), *keys]
        common: list[int | str | bytes] = [
            incarnation.start_ms,
            nonce,
            layout.LEASE_MS,
            layout.TTL_MS,
            str(endpoint),
        ]
        answer = await self._run(script, keys, common + arguments, limit_s)
        if not isinstance(answer, list) or not answer:
            raise StoreError("Redis answered something that our script does not say")
        return answer

    async def _run(
        self,
        script: str,
        keys: Sequence[str],
        arguments: Sequence[int | str | bytes],
        limit_s: float | None = None,
    ) -> Any:
        assert self._link is not None

        def run(client: Redis) -> Any:
            return self._scripts.run(client, script, keys, arguments)

        return await self._link.call(run, limit_s or self._call_s)


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
