"""Cached prefixes by the engines' own KV events.

Type: `precise-prefix-cache-producer`.

Each engine's sidecar reads its events and tells all replicas; predictions bridge the time until
they come. Nothing has to be configured here.

Parameters, which are read and change nothing:
- `tokenProcessorConfig`: blocks have 64 tokens of our own, whatever hash and seed the engine uses.
- `indexerConfig`: the index has one implementation.
- `kvEventsConfig`: sidecars know where their engines publish events.
- `speculativeIndexing` (false), `speculativeTTL` (2s): predictions are always made, and end when
  the engine's events take over.

```yaml
- type: precise-prefix-cache-producer
```
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from epp.framework import Seconds

_PREDICTED = "predictions are always made, and end when the engine's events take over"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisePrefixCache:
    consumes: ClassVar[frozenset[str]] = frozenset({"tokens"})
    produces: ClassVar[frozenset[str]] = frozenset({"prefix-match"})
    spelled: ClassVar[dict[str, str]] = {"speculative_ttl": "speculativeTTL"}
    without_effect: ClassVar[dict[str, str]] = {
        "token_processor_config": "blocks have 64 tokens of our own, whatever the engine hashes",
        "indexer_config": "the index has one implementation",
        "kv_events_config": "sidecars know where their engines publish events",
        "speculative_indexing": _PREDICTED,
        "speculative_ttl": _PREDICTED,
    }
    token_processor_config: dict[str, Any] = field(default_factory=dict[str, Any])
    indexer_config: dict[str, Any] = field(default_factory=dict[str, Any])
    kv_events_config: dict[str, Any] = field(default_factory=dict[str, Any])
    speculative_indexing: bool = False
    speculative_ttl: Seconds = 2.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.speculative_ttl < float("inf"):
            raise ValueError("speculativeTTL must be a duration of at least 0")
