"""From a prompt to block keys: the engine's own tokens where they can be had in time."""

from .asking import Spawn, Tokenizer
from .cache import TokenCache
from .prefixes import Prefixes
from .resolver import MAX_KEYS, Tokens
from .tokenised import Tokenised

__all__ = ["MAX_KEYS", "Prefixes", "Spawn", "TokenCache", "Tokenised", "Tokenizer", "Tokens"]
