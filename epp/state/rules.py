"""How long what a pool has heard is believed, and what it assumes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from . import blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRules:
    fresh_s: float = 2.0
    """A writer silent for longer is not believed: one step down the ladder."""
    writer_lost_s: float = 5.0
    """A writer silent for longer will not say what became of running requests."""
    prediction_grace_s: float = 5.0
    """Longest life of a prediction after its request's first token, where events are seen."""
    max_unconfirmed: int = 10_000
    """Requests of one endpoint whose predictions wait for an event batch."""
    own_block_tokens: int = blocks.OWN_BLOCK_TOKENS
    load_tokens_per_s: Mapping[str, float] = field(default_factory=dict[str, float])
    """How fast engines load from slower tiers, by the tier's name; else their answers show it."""
    sweep_budget: int = 50_000
    """Places in the index that one tick looks at for what dead lives have left."""
