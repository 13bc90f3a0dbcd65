"""An engine's KV events as it would write them: payloads in each layout, and a ZMQ publisher."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import msgspec
import zmq
import zmq.asyncio

from epp.state.blocks import pack
from epp.state.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, Hash

FIELDS = {
    "BlockStored": (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
        "kv_cache_spec_kind",
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}


def stored_map(
    hashes: Sequence[Any], tokens: Sequence[int], size: int, parent: Any = None, **more: Any
) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": parent,
        "token_ids": list(tokens),
        "block_size": size,
        **more,
    }


def removed_map(hashes: Sequence[Any], **more: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), **more}


CLEARED_MAP: dict[str, Any] = {"type": "AllBlocksCleared"}


def as_array(event: dict[str, Any], *, extra: Sequence[Any] = ()) -> list[Any]:
    """The array form of a map, with absent fields at the end left out."""
    names = FIELDS[event["type"]]
    used = max((at + 1 for at, name in enumerate(names) if name in event), default=0)
    if extra:
        used = len(names)
    return [event["type"], *(event.get(name) for name in names[:used]), *extra]


def payload(events: Sequence[Any], *, ts: float = 1.0, dp_rank: int | None = 0) -> bytes:
    return msgspec.msgpack.encode([ts, list(events), dp_rank])


def stored(
    hashes: Sequence[Hash],
    tokens: Sequence[int],
    size: int,
    parent: Hash | None = None,
    **more: Any,
) -> BlockStored:
    """The value that `decode` makes of a stored event."""
    return BlockStored(
        block_hashes=tuple(hashes),
        parent_block_hash=parent,
        tokens=pack(tokens),
        block_size=size,
        **more,
    )


def removed(*hashes: Hash, **more: Any) -> BlockRemoved:
    return BlockRemoved(block_hashes=hashes, **more)


CLEARED: Event = AllBlocksCleared()


class Publisher:
    """A PUB socket that numbers its messages from 0, like an engine in a new life."""

    def __init__(self, endpoint: str = "tcp://127.0.0.1:*", *, bind: bool = True) -> None:
        self._asked = endpoint
        self._bind = bind
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PUB)
        self.seq = 0

    async def __aenter__(self) -> Self:
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.IPV6, int("[" in self._asked))
        if self._bind:
            self._socket.bind(self._asked)
        else:
            self._socket.connect(self._asked)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._context.destroy(linger=0)

    @property
    def endpoint(self) -> str:
        return self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")

    async def send(self, events: Sequence[Any]) -> None:
        await self.send_raw([b"kv", self.seq.to_bytes(8, "big"), payload(events)])
        self.seq += 1

    async def send_raw(self, parts: Sequence[bytes]) -> None:
        await self._socket.send_multipart(list(parts))
