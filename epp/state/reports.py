"""What an engine says about its own load, made safe to calculate with."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from epp.framework import Lora

MAX_ADAPTERS = 1024
"""Adapters of one kind, running or waiting, that are kept of one engine."""
MAX_NAME = 256
"""Characters of an adapter's name; longer ones are not kept."""

_MOST = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """One measurement. None is not known; NaN, infinite, negative and absurd values become None.

    Unknown is never the same as 0: an endpoint that reports nonsense must not look idle (B09).
    """

    waiting: int | None = None
    running: int | None = None
    kv_usage: float | None = None
    """Share of KV blocks in use by running requests, 0 to 1."""
    total_blocks: int | None = None
    """Engine blocks, at least 1."""
    block_tokens: int | None = None
    """Tokens in one engine block, at least 1."""
    lora: Lora | None = None
    """None where the engine says nothing of adapters."""

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "waiting", _count(self.waiting, least=0))
        put(self, "running", _count(self.running, least=0))
        put(self, "total_blocks", _count(self.total_blocks, least=1))
        put(self, "block_tokens", _count(self.block_tokens, least=1))
        usage = self.kv_usage
        known = usage is not None and math.isfinite(usage) and 0.0 <= usage <= 1.0
        put(self, "kv_usage", float(usage) if known and usage is not None else None)
        put(self, "lora", None if self.lora is None else _bounded(self.lora))


def _count(value: float | None, *, least: int) -> int | None:
    if value is None or not math.isfinite(value) or not least <= value <= _MOST:
        return None
    return int(value)


def _bounded(lora: Lora) -> Lora:
    return Lora(
        running=_names(lora.running),
        waiting=_names(lora.waiting),
        most=_count(lora.most, least=0) or 0,
        base=lora.base if len(lora.base) <= MAX_NAME else "",
    )


def _names(names: Iterable[str]) -> frozenset[str]:
    kept = [name for name in names if 0 < len(name) <= MAX_NAME]
    return frozenset(kept if len(kept) <= MAX_ADAPTERS else sorted(kept)[:MAX_ADAPTERS])
