"""How far each endpoint is expected to stay within the times that a request asks for.

Pure. The headroom of an endpoint is the limit less the time that `epp.framework.cost.expected`
gives: not below 0 where the limit is met. Limits come from the gateway's headers
(`Request.slo_ttft_s`, `Request.slo_tpot_s`); one that is not named is met by everybody.

Nothing is expected of a request that nobody could read, nor of an endpoint whose engine says
nothing about what it has to do: its time would be a guess.
"""

from dataclasses import dataclass

import numpy as np

from .candidates import Candidates, Column, Mask
from .cost import CostRules, expected
from .types import Request

_RULES = CostRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """One row a candidate, in their order."""

    known: Mask
    """Whose times are expected; the columns mean nothing for the others."""
    first: Column
    """Seconds left of the limit until the answer begins; without that limit, the negative time."""
    next: Column
    """Likewise of the limit between two tokens."""
    first_fits: Mask
    """Known, and within the limit until the answer begins, or there is none."""
    next_fits: Mask
    """Likewise between two tokens."""

    @property
    def fits(self) -> Mask:
        return self.first_fits & self.next_fits


def is_limited(request: Request) -> bool:
    """Whether the request names any limit."""
    return request.slo_ttft_s is not None or request.slo_tpot_s is not None


def first_token_s(request: Request, candidates: Candidates) -> Column:
    """Seconds at each candidate until the answer begins; NaN where nothing is expected."""
    times = expected(request, candidates, _RULES)
    return np.where(_known(request, candidates), times.first_token, np.nan)


def headroom(request: Request, candidates: Candidates) -> Headroom:
    """What the candidates leave of the request's limits."""
    known = _known(request, candidates)
    times = expected(request, candidates, _RULES)
    first = (request.slo_ttft_s or 0.0) - times.first_token
    following = (request.slo_tpot_s or 0.0) - times.next_token
    return Headroom(
        known=known,
        first=first,
        next=following,
        first_fits=known & (first >= 0.0) if request.slo_ttft_s is not None else known,
        next_fits=known & (following >= 0.0) if request.slo_tpot_s is not None else known,
    )


def _known(request: Request, candidates: Candidates) -> Mask:
    """Whose times are more than a guess."""
    return ~np.isnan(candidates.column("waiting")) & request.scored
