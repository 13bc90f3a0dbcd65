"""What a request says about KV that is handed from one engine to another. Pure.

A prefill request (`do_remote_decode`) keeps its blocks and is answered with an offer of them; a
decode request (`do_remote_prefill`) carries that offer and pulls the blocks. The rules are those
of vLLM 0.32 with its NIXL connector, its dangers included: a request that says it pulls and names
no blocks kills the engine, and one that does not say from where waits until its client leaves,
and kills the engine then.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

import msgspec

from epp.sim.hashing import Content

BlockId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class Misuse(Enum):
    """Parameters that an engine is not up to."""

    FATAL = "fatal"
    """The engine dies when it sees them."""
    STUCK = "stuck"
    """The request waits for ever; when it is aborted, the engine dies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullAsk:
    """Blocks of one request in another engine."""

    engine_id: str
    request_id: str
    host: str
    port: int
    blocks: tuple[int, ...]
    """Of the whole prompt, from its start. Empty: there is nothing to pull."""
    heartbeats: bool = True
    """Whether the other engine is told that somebody still wants them."""
    cached_tokens: int | None = None
    """Prompt tokens that the other engine had in its cache."""
    stored: tuple[Content, ...] = ()
    """What the blocks hold, where it comes from a storage and no engine is asked."""


@dataclass(frozen=True, slots=True)
class MeetAsk:
    """A name under which another engine will keep an offer, and where to ask for it."""

    name: str
    host: str
    port: int
    engine_id: str | None = None
    """The life of the engine that must be met; None takes any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """What one request wants to be done with its KV."""

    offer: bool = False
    """Keep the blocks when the request has ended, for another engine."""
    name: str = ""
    """The name that the offer is kept under; empty: it is the answer's."""
    pull: PullAsk | None = None
    meet: MeetAsk | None = None
    """Ask for the pull there, before anything else."""
    source: MeetAsk | None = None
    """Fetch from there what its cache holds of the prompt, before it is computed here."""
    misuse: Misuse | None = None


NO_TRANSFER = Transfer()


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Blocks that are kept for another engine."""

    request_id: str
    blocks: tuple[int, ...]
    tokens: int
    """Tokens whose KV the blocks hold."""
    cached_tokens: int

    def params(self, *, engine_id: str, host: str, port: int) -> dict[str, object]:
        """`kv_transfer_params` of the answer: the fields of vLLM 0.32 in their order."""
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(self.blocks)],
            "remote_engine_id": engine_id,
            "remote_request_id": self.request_id,
            "remote_host": host,
            "remote_port": port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": self.tokens,
            "remote_blocks_expiry_time": None,
            "transfer_mode": "pull",
            "remote_prefill_cached_tokens": self.cached_tokens,
        }


class _Source(msgspec.Struct, frozen=True):
    """Where a pull goes; unknown members are ignored."""

    remote_engine_id: str
    remote_request_id: str
    remote_host: str
    remote_port: int
    tp_size: int | None = None
    remote_prefill_cached_tokens: object = None


def read_params(params: object) -> Transfer:
    """Read a request's `kv_transfer_params`, as the engine got them from wherever they stood."""
    if not params:
        return NO_TRANSFER
    if not isinstance(params, Mapping):
        return Transfer(misuse=Misuse.FATAL)
    offer = bool(params.get("do_remote_decode"))
    if not params.get("do_remote_prefill"):
        return Transfer(offer=offer) if offer else NO_TRANSFER
    blocks = _blocks(params.get("remote_block_ids"))
    if blocks is None:
        return Transfer(offer=offer, misuse=Misuse.FATAL)
    try:
        source = msgspec.convert(params, _Source)
    except msgspec.ValidationError:
        return Transfer(offer=offer, misuse=Misuse.STUCK)
    cached = source.remote_prefill_cached_tokens
    ask = PullAsk(
        engine_id=source.remote_engine_id,
        request_id=source.remote_request_id,
        host=source.remote_host,
        port=source.remote_port,
        blocks=blocks,
        heartbeats=source.tp_size is not None,
        cached_tokens=cached if isinstance(cached, int) else None,
    )
    return Transfer(offer=offer, pull=ask)


def _blocks(given: object) -> tuple[int, ...] | None:
    """Block ids of the one KV group: `[[1, 2]]`, or `[1, 2]` as older engines wrote it."""
    try:
        groups = msgspec.convert(given, list[list[BlockId]] | None)
    except msgspec.ValidationError:
        try:
            groups = [msgspec.convert(given, list[BlockId])]
        except msgspec.ValidationError:
            return None
    if groups is None or len(groups) > 1:
        return None
    return tuple(groups[0]) if groups else ()
