"""How full a pool is, and which requests are not worth waiting for then. Pure.

Saturation is the reference's `utilization-detector` with its defaults: the mean over endpoints of
what is scarcest there, max(waiting / 5, KV cache use / 0.8); 1.0 stands for "full". An endpoint
whose numbers are not known counts as full, so that a pool that nobody can see is full as well
(faults B01, G06). Only requests with a priority below 0 feel it: the others are always served.
"""

from collections.abc import Callable

import numpy as np

from epp.errors import Saturated
from epp.framework import Candidates

FULL_QUEUE = 5
"""Waiting requests at which an endpoint is full."""
FULL_KV_CACHE = 0.8
"""Share of the KV cache at which it is."""
FULL = 1.0


def saturation(endpoints: Candidates) -> float:
    """0 for an idle pool, 1 for a full one, more beyond; 1 where there is nobody.

    Where an engine tells one of the two numbers, that one counts (fault B03).
    """
    if not len(endpoints):
        return FULL
    queue = endpoints.column("waiting") / FULL_QUEUE
    cache = endpoints.column("kv_usage") / FULL_KV_CACHE
    scarcest = np.fmax(queue, cache)
    return float(np.where(np.isnan(scarcest), FULL, scarcest).mean())


def shed(priority: int, ready: Callable[[], Candidates]) -> None:
    """Raises Saturated for a request that may be shed while those who are `ready` are full.

    They are only asked for where it matters. NoEndpoint, which that may raise, comes before: an
    empty pool is no full one, and trying again a little later does not help.
    """
    if priority < 0 and saturation(ready()) >= FULL:
        raise Saturated("system saturated, sheddable request dropped")
