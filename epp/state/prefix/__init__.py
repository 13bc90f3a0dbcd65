"""Who holds which prefix: by the engines' own events, and by our own predictions."""

from .holders import Keys, Told
from .index import PrefixIndex, TierDepths
from .predicted import PredictedIndex
from .tiers import GPU, Tier, tier_of
from .walk import Depths

__all__ = [
    "GPU",
    "Depths",
    "Keys",
    "PredictedIndex",
    "PrefixIndex",
    "Tier",
    "TierDepths",
    "Told",
    "tier_of",
]
