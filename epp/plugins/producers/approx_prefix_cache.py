"""Cached prefixes by what was sent where.

Type: `approx-prefix-cache-producer`.

Predictions are always made, when a request is routed, and stand in wherever an engine's own events
do not say more. They are bounded as a whole, the least recently used blocks go first, a prompt's
tail before its head, and no prompt is cut short.

Parameters, which are read and change nothing:
- `autoTune` (true), `blockSizeTokens` (16), `blockSize` (0): blocks have 64 tokens everywhere,
  which is also the reference's least.
- `maxPrefixTokensToMatch` (131072), `maxPrefixBlocksToMatch` (2048): the whole prompt is matched.
- `lruCapacityPerServer` (31250): there is one bound for all endpoints.

```yaml
- type: approx-prefix-cache-producer
```
"""

from dataclasses import dataclass
from typing import ClassVar

_BLOCKS = "blocks have 64 tokens everywhere"
_WHOLE = "the whole prompt is matched"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApproxPrefixCache:
    consumes: ClassVar[frozenset[str]] = frozenset({"tokens"})
    produces: ClassVar[frozenset[str]] = frozenset({"prefix-match"})
    without_effect: ClassVar[dict[str, str]] = {
        "auto_tune": _BLOCKS,
        "block_size_tokens": _BLOCKS,
        "block_size": _BLOCKS,
        "max_prefix_tokens_to_match": _WHOLE,
        "max_prefix_blocks_to_match": _WHOLE,
        "lru_capacity_per_server": "one bound holds for the predictions of all endpoints",
    }
    auto_tune: bool = True
    block_size_tokens: int = 16
    block_size: int = 0
    max_prefix_tokens_to_match: int = 131_072
    max_prefix_blocks_to_match: int = 2048
    lru_capacity_per_server: int = 31_250

    def __post_init__(self) -> None:
        if self.block_size_tokens < 1:
            raise ValueError("blockSizeTokens must be at least 1")
        if self.lru_capacity_per_server < 1:
            raise ValueError("lruCapacityPerServer must be at least 1")
        for name in ("block_size", "max_prefix_tokens_to_match", "max_prefix_blocks_to_match"):
            if getattr(self, name) < 0:
                raise ValueError("sizes of blocks and prefixes must be at least 0")
