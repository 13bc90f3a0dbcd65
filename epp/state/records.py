"""One flush of one writer, or a part of its snapshot: the bytes, and the value that they mean.

`parse` believes nothing: every number is checked before anyone calculates with it, and a record
of a later version, of damaged bytes or beyond the bounds is a RecordError, never a guess.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import ClassVar

from google.protobuf.message import DecodeError

from epp._pb import state_pb2 as pb
from epp.errors import EppError
from epp.framework import EndpointId, Incarnation, Lora

from .blocks import SCHEME
from .keys import PackedKeys, packed
from .reports import LoadReport

VERSION = 1
MAX_BYTES = 1 << 20
"""Largest serialised record: 130,000 keys. A fuller state does not fit; its tail is left out."""
MAX_KEYS = 120_000
"""Keys that fit into one record, stored and removed together."""
MAX_REQUESTS = 10_000
"""First tokens, and finished requests, of one record."""
MAX_ID = 128
"""Characters of a decision id."""
MAX_TIERS = 8
"""Slower tiers of one engine; more are not read."""
MAX_TIER_NAME = 64
MAX_PARTS = 4096
"""Records of one snapshot."""


class RecordError(EppError):
    """A record that cannot be used. `kind` is one of `KINDS`, and a metric label."""

    reason = "record"
    KINDS: ClassVar = ("too-large", "damaged", "version", "endpoint", "bounds")

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(f"state record refused ({kind}): {what}")
        self.kind = kind


class Outcome(IntEnum):
    """How a request ended, as the sidecar saw it."""

    UNKNOWN = 0
    OK = 1
    ENGINE_ERROR = 2
    ENGINE_GONE = 3
    CLIENT_GONE = 4


@dataclass(frozen=True, slots=True)
class TierChange:
    """Own blocks that came to and went from one tier slower than the GPU.

    `tier` is the engine's own word in capitals (CPU, DISK, ...): unknown ones are possible.
    """

    tier: str
    stored: Sequence[int] = ()
    removed: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockChange:
    """Own blocks that came and went; `stored` and `removed` speak of the GPU.

    `reset`: what is stored here, on the GPU and on all tiers, replaces everything known before.
    """

    stored: Sequence[int] = ()
    removed: Sequence[int] = ()
    reset: bool = False
    own_block_tokens: int = 64
    scheme: int = SCHEME
    tiers: tuple[TierChange, ...] = ()
    """At most one for each tier. A block may be on several tiers, and on the GPU, at once."""

    @property
    def keys(self) -> int:
        """Block keys in all lists."""
        gpu = len(self.stored) + len(self.removed)
        return gpu + sum(len(tier.stored) + len(tier.removed) for tier in self.tiers)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """The engine's load, whether it takes requests, and whether its KV events are seen."""

    report: LoadReport = field(default_factory=LoadReport)
    ready: bool = False
    events: bool = False
    partial: bool = False
    """The engine may hold blocks that its writer missed; those that it tells of are there."""


@dataclass(slots=True)
class FirstToken:
    """The first byte of an answer left the engine: the prompt's prefill is over.

    Never changed once it is made; to be frozen would cost each request more than all else of it.
    """

    decision_id: str
    ttft_s: float | None = None


@dataclass(slots=True, kw_only=True)
class Done:
    """One request is over. None is not known. Never changed once it is made, like `FirstToken`."""

    decision_id: str
    outcome: Outcome = Outcome.UNKNOWN
    status: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    ttft_s: float | None = None
    predicted_cached_tokens: int | None = None
    duration_s: float | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """Which part of a snapshot a record is: `index` of 0 to `of` - 1, in order."""

    index: int
    of: int

    @property
    def last(self) -> bool:
        return self.index == self.of - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    incarnation: Incarnation
    nonce: int
    """64 bits: who speaks for the incarnation just now."""
    seq: int
    """1 for a writer's first record after a claim, then one more each; 0 only in snapshots."""
    blocks: BlockChange | None = None
    status: EngineStatus | None = None
    first_tokens: tuple[FirstToken, ...] = ()
    done: tuple[Done, ...] = ()
    part: Part | None = None
    """Not None: no step of the sequence, but all that its writer knew at `seq`."""

    @property
    def endpoint(self) -> EndpointId:
        return self.incarnation.endpoint

    @property
    def reset(self) -> bool:
        return self.blocks is not None and self.blocks.reset


def encode(record: Record) -> bytes:
    """Serialise. Raises ValueError for what a reader would refuse as too large."""
    message = pb.Record(
        version=VERSION,
        endpoint=str(record.endpoint),
        incarnation=record.incarnation.start_ms,
        nonce=record.nonce,
        seq=record.seq,
    )
    change, status = record.blocks, record.status
    if record.part is not None:
        message.part.index, message.part.of = record.part.index, record.part.of
    if change is not None:
        if change.keys > MAX_KEYS:
            raise ValueError(f"a record holds {MAX_KEYS} block keys at most")
        blocks = message.blocks
        blocks.reset = change.reset
        blocks.stored, blocks.removed = packed(change.stored), packed(change.removed)
        blocks.own_block_tokens = change.own_block_tokens
        blocks.scheme = change.scheme
        for tier in change.tiers:
            blocks.tiers.add(
                tier=tier.tier, stored=packed(tier.stored), removed=packed(tier.removed)
            )
    if status is not None:
        report = status.report
        message.load.CopyFrom(
            pb.Load(
                waiting=report.waiting,
                running=report.running,
                kv_usage=report.kv_usage,
                total_blocks=report.total_blocks,
                block_tokens=report.block_tokens,
                ready=status.ready,
                events=status.events,
                partial=status.partial,
                lora=None if report.lora is None else _lora_message(report.lora),
            )
        )
    for first in record.first_tokens:
        message.first_tokens.add(decision_id=first.decision_id, ttft_s=first.ttft_s)
    for done in record.done:
        message.done.add(
            decision_id=done.decision_id,
            outcome=pb.Outcome.ValueType(int(done.outcome)),
            status=done.status,
            prompt_tokens=done.prompt_tokens,
            cached_tokens=done.cached_tokens,
            completion_tokens=done.completion_tokens,
            ttft_s=done.ttft_s,
            predicted_cached_tokens=done.predicted_cached_tokens,
            duration_s=done.duration_s,
        )
    data = message.SerializeToString()
    if len(data) > MAX_BYTES:
        raise ValueError(f"a record has {MAX_BYTES} bytes at most, this one has {len(data)}")
    return data


def parse(data: bytes) -> Record:
    """Read one record. Raises RecordError; fields of later minor versions are ignored."""
    if len(data) > MAX_BYTES:
        raise RecordError("too-large", f"{len(data)} bytes, {MAX_BYTES} are allowed")
    message = pb.Record()
    try:
        message.ParseFromString(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise RecordError("damaged", "not a Record message") from error
    if message.version != VERSION:
        raise RecordError("version", f"version {message.version}, this reader knows {VERSION}")
    try:
        endpoint = EndpointId.parse(message.endpoint)
    except ValueError as error:
        raise RecordError("endpoint", "endpoint is not pool|name|port") from error
    if not (endpoint.name and 0 < endpoint.port < 65536 and len(message.endpoint) <= 1024):
        raise RecordError("endpoint", "endpoint without a name or a port")
    part = Part(message.part.index, message.part.of) if message.HasField("part") else None
    if (part is None and message.seq == 0) or message.incarnation >= 2**53:
        raise RecordError("bounds", "sequence or incarnation out of range")
    if part is not None and not part.index < part.of <= MAX_PARTS:
        raise RecordError("bounds", "a part of a snapshot that cannot be")
    if len(message.first_tokens) > MAX_REQUESTS or len(message.done) > MAX_REQUESTS:
        raise RecordError("bounds", f"more than {MAX_REQUESTS} requests in one record")
    return Record(
        incarnation=Incarnation(endpoint, message.incarnation),
        nonce=message.nonce,
        seq=message.seq,
        blocks=_blocks(message.blocks) if message.HasField("blocks") else None,
        status=_status(message.load) if message.HasField("load") else None,
        first_tokens=tuple(
            FirstToken(first.decision_id, _seconds(first.ttft_s))
            for first in message.first_tokens
            if 0 < len(first.decision_id) <= MAX_ID
        ),
        done=tuple(_done(done) for done in message.done if 0 < len(done.decision_id) <= MAX_ID),
        part=part,
    )


def _blocks(delta: pb.BlockDelta) -> BlockChange:
    return BlockChange(
        stored=_keys(delta.stored),
        removed=_keys(delta.removed),
        reset=delta.reset,
        own_block_tokens=delta.own_block_tokens,
        scheme=delta.scheme,
        tiers=tuple(
            TierChange(tier.tier, _keys(tier.stored), _keys(tier.removed))
            for tier in delta.tiers[:MAX_TIERS]
            if 0 < len(tier.tier) <= MAX_TIER_NAME
        ),
    )


def _keys(data: bytes) -> Sequence[int]:
    try:
        return PackedKeys(data) if data else ()
    except ValueError as error:
        raise RecordError("damaged", str(error)) from error


def _status(load: pb.Load) -> EngineStatus:
    def known(name: str) -> float | None:
        return getattr(load, name) if load.HasField(name) else None

    return EngineStatus(
        report=LoadReport(
            waiting=_whole(known("waiting")),
            running=_whole(known("running")),
            kv_usage=known("kv_usage"),
            total_blocks=_whole(known("total_blocks")),
            block_tokens=_whole(known("block_tokens")),
            lora=_lora(load.lora) if load.HasField("lora") else None,
        ),
        ready=load.ready,
        events=load.events,
        partial=load.partial,
    )


def _lora(message: pb.Lora) -> Lora:
    return Lora(
        running=frozenset(message.running),
        waiting=frozenset(message.waiting),
        most=message.most,
        base=message.base,
    )


def _lora_message(lora: Lora) -> pb.Lora:
    return pb.Lora(
        running=sorted(lora.running), waiting=sorted(lora.waiting), most=lora.most, base=lora.base
    )


def _done(done: pb.Done) -> Done:
    def tokens(name: str) -> int | None:
        return _whole(getattr(done, name)) if done.HasField(name) else None

    return Done(
        decision_id=done.decision_id,
        outcome=_outcome(done.outcome),
        status=done.status if done.status < 1000 else 0,
        prompt_tokens=tokens("prompt_tokens"),
        cached_tokens=tokens("cached_tokens"),
        completion_tokens=tokens("completion_tokens"),
        ttft_s=_seconds(done.ttft_s) if done.HasField("ttft_s") else None,
        predicted_cached_tokens=tokens("predicted_cached_tokens"),
        duration_s=_seconds(done.duration_s) if done.HasField("duration_s") else None,
    )


def _outcome(value: int) -> Outcome:
    try:
        return Outcome(value)
    except ValueError:  # a word of a later version
        return Outcome.UNKNOWN


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _seconds(value: float) -> float | None:
    return value if math.isfinite(value) and value >= 0 else None
