"""Which requests are not worth waiting for, by how full the pool is. Pure.

A saturation detector says how full it is. Only requests with a priority below 0 feel that: the
others are always served. Admitters, where the configuration has any, refuse what they are there
for. One that fails, or says nonsense, refuses nobody.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import isfinite

from epp.errors import Saturated
from epp.framework import Admitter, Candidates, Chance, Detector, Request
from epp.framework.fullness import FULL

from .ballot import Ballot, Why
from .plan.live import Named


def shed(
    priority: int,
    detector: Named[Detector],
    ballot: Ballot,
    ready: Callable[[], Candidates],
) -> None:
    """Raises Saturated for a request that may be shed while those who are `ready` are full.

    They are only asked for where it matters. NoEndpoint, which that may raise, comes before: an
    empty pool is no full one, and trying again a little later does not help.
    """
    if priority >= 0:
        return
    found = ready()
    ballot.begin()
    full = ballot.ask(detector.name, lambda: float(detector.plugin.saturation(found)))
    if full is not None and not isfinite(full):
        ballot.blame(detector.name, Why.NOT_FINITE)
    elif full is not None and full >= FULL:
        raise Saturated("system saturated, sheddable request dropped")


def admit(
    request: Request,
    admitters: Sequence[Named[Admitter]],
    candidates: Candidates,
    chance: Chance,
    ballot: Ballot,
) -> None:
    """Raises Saturated where one of them refuses the request."""
    ballot.begin()
    for one in admitters:
        said = ballot.ask(one.name, partial(one.plugin.admits, request, candidates, chance))
        if said is False:
            raise Saturated(f"{one.name} refuses this request just now; try again a little later")
