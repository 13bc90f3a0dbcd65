"""From a prompt to block keys: the engine's own tokens where they can be had in time."""

from .cache import TokenCache
from .resolver import MAX_KEYS, Spawn, Tokenizer, Tokens
from .tokenised import Tokenised

__all__ = ["MAX_KEYS", "Spawn", "TokenCache", "Tokenised", "Tokenizer", "Tokens"]
