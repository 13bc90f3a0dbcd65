"""Who holds which prefix: by the engines' own events, and by our own predictions."""

from .index import PrefixIndex
from .predicted import PredictedIndex

__all__ = ["PredictedIndex", "PrefixIndex"]
