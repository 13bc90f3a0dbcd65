"""How full endpoints are: what is scarcest at each. Pure."""

import numpy as np

from .candidates import Candidates, Column

FULL_QUEUE = 5
"""Waiting requests at which an endpoint is full."""
FULL_KV_CACHE = 0.8
"""Share of the KV cache at which it is."""
FULL = 1.0


def fullness(
    candidates: Candidates, full_queue: float = FULL_QUEUE, full_kv_cache: float = FULL_KV_CACHE
) -> Column:
    """`max(waiting / full_queue, KV cache use / full_kv_cache)` of each; 1 is full.

    Where an engine tells one of the two numbers, that one counts (fault B03). An endpoint whose
    numbers are not known counts as full, so that a pool that nobody can see is full as well
    (faults B01, G06). Rule of the Gateway API Inference Extension's llm-d router.
    """
    queue = candidates.column("waiting") / full_queue
    cache = candidates.column("kv_usage") / full_kv_cache
    scarcest = np.fmax(queue, cache)
    return np.where(np.isnan(scarcest), FULL, scarcest)


def mean_fullness(
    candidates: Candidates, full_queue: float = FULL_QUEUE, full_kv_cache: float = FULL_KV_CACHE
) -> float:
    """Of all of them; a pool of nobody is full."""
    if not len(candidates):
        return FULL
    return float(fullness(candidates, full_queue, full_kv_cache).mean())
