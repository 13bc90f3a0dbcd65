"""A Redis as our scripts and readers see it, in memory and in virtual time, which fails on demand.

It may stall, vanish, lose its last writes in a failover, come back with another clock, be emptied,
or trim its log past slow readers. What the Lua scripts do is done here in Python, step by step.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from redis.exceptions import ConnectionError as Gone
from redis.exceptions import NoScriptError, ResponseError

from epp.state.store import scripts

Id = tuple[int, int]


@dataclass
class Data:
    """All that a replica of this server would have."""

    entries: list[tuple[Id, dict[bytes, bytes]]] = field(default_factory=list)
    last: Id = (0, 0)
    hashes: dict[bytes, dict[bytes, bytes]] = field(default_factory=dict)
    texts: dict[bytes, bytes] = field(default_factory=dict)
    expires_ms: dict[bytes, int] = field(default_factory=dict)
    writers: dict[bytes, float] = field(default_factory=dict)


class LossyServer:
    """One server with one stream. `clock` in seconds is the world's; ours may be skewed."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.data = Data()
        self._before: deque[Data] = deque(maxlen=16)
        """What each of the last writes found."""
        self.skew_ms = 1_000_000
        self.run_id = 1
        self.is_up = True
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.news = asyncio.Event()
        self.known_scripts: set[str] = set()

    @property
    def now_ms(self) -> int:
        return int(self._clock() * 1000) + self.skew_ms

    def fail_over(self, lost: int, skew_ms: int) -> None:
        """Another server takes over, without the last writes, by another clock."""
        for _ in range(min(lost, len(self._before))):
            self.data = self._before.pop()
        self.skew_ms += skew_ms
        self._begin_anew()

    def empty(self) -> None:
        self.data = Data()
        self._begin_anew()

    def trim(self, keep: int) -> None:
        """As when the log has reached its limit."""
        self.data.entries = self.data.entries[len(self.data.entries) - keep :]

    def _begin_anew(self) -> None:
        self._before.clear()
        self.known_scripts.clear()
        self.run_id += 1
        self._tell()

    def wrote(self) -> None:
        """Go on with a copy: a failover may bring back what was."""
        data = self.data
        self._before.append(data)
        self.data = Data(
            list(data.entries),
            data.last,
            {name: dict(fields) for name, fields in data.hashes.items()},
            dict(data.texts),
            dict(data.expires_ms),
            dict(data.writers),
        )

    def expire(self) -> None:
        now = self.now_ms
        for key in [key for key, at in self.data.expires_ms.items() if at <= now]:
            self.data.hashes.pop(key, None)
            self.data.texts.pop(key, None)
            del self.data.expires_ms[key]

    def add(self, fields: dict[bytes, bytes]) -> bytes:
        last = self.data.last
        new = (self.now_ms, 0) if self.now_ms > last[0] else (last[0], last[1] + 1)
        self.data.entries.append((new, fields))
        self.data.last = new
        self._tell()
        return text_of(new)

    def _tell(self) -> None:
        news, self.news = self.news, asyncio.Event()
        news.set()


class LossyClient:
    """What a `Link` calls, over one connection."""

    def __init__(self, server: LossyServer) -> None:
        self._server = server
        self._run_id = server.run_id

    async def _arrive(self) -> None:
        await self._server.flowing.wait()
        if not self._server.is_up or self._run_id != self._server.run_id:
            raise Gone("connection lost")
        self._server.expire()

    def cut(self) -> None: ...

    async def script_load(self, script: str) -> str:
        await self._arrive()
        self._server.known_scripts.add(script)
        return script

    async def evalsha(self, script: str, count: int, *words: Any) -> Any:
        await self._arrive()
        if script not in self._server.known_scripts:
            raise NoScriptError("NOSCRIPT")
        keys = [_bytes(word) for word in words[:count]]
        said = [_bytes(word) for word in words[count:]]
        self._server.wrote()
        return _STEPS[script](self._server, keys, said)

    async def get(self, key: str) -> bytes | None:
        await self._arrive()
        return self._server.data.texts.get(_bytes(key))

    async def info(self, section: str) -> dict[str, Any]:
        await self._arrive()
        return {"run_id": self._server.run_id} if section == "server" else {"role": "master"}

    async def xinfo_stream(self, _: str) -> dict[bytes, Any]:
        await self._arrive()
        data = self._server.data
        if data.last == (0, 0):
            raise ResponseError("no such key")
        first = data.entries[0] if data.entries else None
        return {
            b"last-generated-id": text_of(data.last),
            b"first-entry": None if first is None else [text_of(first[0]), first[1]],
        }

    async def xread(self, streams: dict[str, bytes], count: int, block: int) -> list[Any]:
        await self._arrive()
        ((key, cursor),) = streams.items()
        deadline = asyncio.get_running_loop().time() + block / 1000
        while not (found := self._after(_id(cursor), count)):
            try:
                async with asyncio.timeout_at(deadline):
                    await self._server.news.wait()
            except TimeoutError:
                return []
            await self._arrive()
        return [[_bytes(key), found]]

    async def xrange(self, _: str, low: str, high: bytes, count: int) -> list[Any]:
        await self._arrive()
        found = self._after(_id(low.removeprefix("(").encode()), count)
        return [one for one in found if _id(one[0]) <= _id(high)]

    def pipeline(self, *, transaction: bool) -> "_Pipeline":
        assert not transaction
        return _Pipeline(self._server, self._arrive)

    def _after(self, cursor: Id, count: int) -> list[Any]:
        entries = self._server.data.entries
        return [(text_of(at), dict(fields)) for at, fields in entries if at > cursor][:count]


class _Pipeline:
    def __init__(self, server: LossyServer, arrive: Callable[[], Any]) -> None:
        self._server = server
        self._arrive = arrive
        self._asked: list[tuple[bytes, tuple[str, ...]]] = []

    async def __aenter__(self) -> "_Pipeline":
        return self

    async def __aexit__(self, *_: object) -> None: ...

    def hmget(self, key: str, *fields: str) -> None:
        self._asked.append((_bytes(key), fields))

    async def execute(self) -> list[list[bytes | None]]:
        await self._arrive()
        hashes = self._server.data.hashes
        return [[hashes.get(key, {}).get(_bytes(one)) for one in of] for key, of in self._asked]


def _claim(server: LossyServer, keys: list[bytes], said: list[bytes]) -> list[Any]:
    lease, _, streams, _ = keys
    start, nonce, lease_ms, _, endpoint, count = said
    data = server.data
    if data.texts.get(streams, count) != count:
        return [scripts.OTHER_STREAMS, data.texts[streams]]
    held = data.hashes.get(lease)
    if held is not None and int(held[b"start"]) > int(start):
        return [scripts.FENCED]
    data.hashes[lease] = {b"start": start, b"nonce": nonce}
    data.texts[streams] = count
    _renew(server, [lease, streams], lease_ms)
    data.writers.setdefault(endpoint, float("inf"))
    last = data.entries[-1][0] if data.entries else (0, 0)
    return [scripts.DONE, text_of(last), len(data.writers)]


def _append(server: LossyServer, keys: list[bytes], said: list[bytes]) -> list[Any]:
    lease, _, streams, _ = keys
    start, nonce, lease_ms, _, endpoint, record, retain_ms, most = said
    refusal = _refusal(server, lease, start, nonce)
    if refusal is not None:
        return [refusal]
    data = server.data
    oldest = server.now_ms - int(retain_ms)
    for name, at in sorted(data.writers.items(), key=lambda one: one[1]):
        if at >= oldest:
            break
        if lease.removesuffix(endpoint) + name in data.hashes:
            oldest = int(at)
            break
        del data.writers[name]
    data.entries = [one for one in data.entries if one[0][0] >= oldest][-int(most) :]
    where = server.add({b"e": endpoint, b"r": record})
    _renew(server, [lease, streams], lease_ms)
    return [scripts.DONE, where, len(data.writers)]


def _save(server: LossyServer, keys: list[bytes], said: list[bytes]) -> list[Any]:
    lease, _, snapshot = keys
    start, nonce, lease_ms, ttl_ms, endpoint, cursor, parts, memory = said
    refusal = _refusal(server, lease, start, nonce)
    if refusal is not None:
        return [refusal]
    fields = {b"start": start, b"nonce": nonce, b"cursor": cursor, b"parts": parts}
    server.data.hashes[snapshot] = {**fields, b"memory": memory}
    _renew(server, [snapshot], ttl_ms)
    _renew(server, [lease], lease_ms)
    server.data.writers[endpoint] = _id(cursor)[0]
    return [scripts.DONE]


def _recall(server: LossyServer, keys: list[bytes], said: list[bytes]) -> bytes | None:
    kept = server.data.hashes.get(keys[0], {})
    return kept.get(b"memory") if kept.get(b"start") == said[0] else None


def _refusal(server: LossyServer, lease: bytes, start: bytes, nonce: bytes) -> int | None:
    held = server.data.hashes.get(lease)
    if held is None:
        return scripts.NO_LEASE
    return None if held == {b"start": start, b"nonce": nonce} else scripts.FENCED


def _renew(server: LossyServer, keys: list[bytes], for_ms: bytes) -> None:
    for key in keys:
        server.data.expires_ms[key] = server.now_ms + int(for_ms)


_STEPS: dict[str, Callable[[LossyServer, list[bytes], list[bytes]], Any]] = {
    scripts.CLAIM: _claim,
    scripts.APPEND: _append,
    scripts.SAVE: _save,
    scripts.RECALL: _recall,
}


def text_of(where: Id) -> bytes:
    return b"%d-%d" % where


def _id(text: bytes) -> Id:
    milliseconds, _, number = text.partition(b"-")
    return int(milliseconds), int(number or b"0")


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
