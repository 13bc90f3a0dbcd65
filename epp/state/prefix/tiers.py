"""Where an engine keeps KV beside its GPU, and what is known of such places by their names."""

from dataclasses import dataclass

GPU = "GPU"
"""Where blocks are used; an event that names no place means it."""
MAX_TIERS = 8
"""Slower tiers of one pool; what comes of more is refused."""


@dataclass(frozen=True, slots=True)
class Tier:
    """Properties of a slower tier."""

    pace: float
    """Tokens that it loads in a second, as a multiple of what the pod's own CPU memory does."""
    chunk_tokens: int = 1
    """It gives back whole pieces of so many tokens, counted from the beginning of a prompt."""
    shared: bool = False
    """Every engine of the pool reads what any of them wrote; it outlives whoever wrote it."""


_CHUNK = 256
"""Tokens that LMCache reads and writes at once, by default; SGLang's HiCache goes by pages of 64 or
fewer, and vLLM's offloading by blocks of its own. The largest of them promises too little rather
than too much."""
_KNOWN = {
    "CPU": Tier(1.0),
    "CPU_PINNED": Tier(1.0),
    "CPU_TIER1": Tier(1.0),
    "DISK": Tier(0.1),
    "CPU_TIER2": Tier(0.1),
    "STORAGE": Tier(0.1),
    "SHARED": Tier(0.1, _CHUNK, shared=True),
    "SHARED_STORAGE": Tier(0.1, _CHUNK, shared=True),
    "EXTERNAL": Tier(0.1, _CHUNK, shared=True),
    "REMOTE": Tier(0.1, _CHUNK, shared=True),
    "OBJ": Tier(0.05, _CHUNK, shared=True),
}
_UNKNOWN = Tier(0.02)
"""Somewhere that nobody has told us of: it is slow, and its engine's own."""


def tier_of(name: str) -> Tier:
    """What `name`, in capitals, stands for."""
    return _KNOWN.get(name, _UNKNOWN)
