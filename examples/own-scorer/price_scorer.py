"""Prefer cheap endpoints for requests that may take longer.

Type: `price-scorer`. Beta.

A label says what an hour of an endpoint costs. Requests that do not ask for it feel nothing: all
endpoints score 0 then, and other scorers decide.

Parameters:
- `header` (`x-service-tier`), `value` (`flex`): a request asks by this header with this value.
- `label` (`example.com/price`): the endpoints' label, a number above 0 in any currency.

Formula: `cheapest / price`, so that twice the price scores half; 0 without a price.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import ClassVar

from epp.framework import Candidates, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    stability: ClassVar = "beta"

    header: str = "x-service-tier"
    value: str = "flex"
    label: str = "example.com/price"

    def __post_init__(self) -> None:
        if not self.label:
            raise ValueError("label must not be empty")

    def score(self, request: Request, candidates: Candidates, /) -> list[float]:
        if request.headers.get(self.header.lower()) != self.value:
            return [0.0] * len(candidates)
        prices = [_price(labels.get(self.label, "")) for labels in candidates.labels]
        cheapest = min(prices, default=inf)
        return [cheapest / price if price < inf else 0.0 for price in prices]


@lru_cache(maxsize=1024)
def _price(text: str) -> float:
    """Infinite unless it is a number above 0: labels hold whatever people wrote."""
    try:
        price = float(text)
    except ValueError:
        return inf
    return price if price > 0.0 else inf
