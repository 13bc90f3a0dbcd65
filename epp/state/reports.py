"""What an engine says about its own load, made safe to calculate with."""

import math
from dataclasses import dataclass

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

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "waiting", _count(self.waiting, least=0))
        put(self, "running", _count(self.running, least=0))
        put(self, "total_blocks", _count(self.total_blocks, least=1))
        put(self, "block_tokens", _count(self.block_tokens, least=1))
        usage = self.kv_usage
        known = usage is not None and math.isfinite(usage) and 0.0 <= usage <= 1.0
        put(self, "kv_usage", float(usage) if known and usage is not None else None)


def _count(value: float | None, *, least: int) -> int | None:
    if value is None or not math.isfinite(value) or not least <= value <= _MOST:
        return None
    return int(value)
