"""How many equal prompts each endpoint was given lately, so that no burst of them lands on one.

The first of many equal requests makes its endpoint attractive for all of the others long before any
load report tells that they came. Who rates endpoints may look here (`Request.twins`). Prompts are
equal by the last of their whole blocks, whose key names all blocks before it.
"""

from collections import OrderedDict
from collections.abc import Mapping

from epp.framework import EndpointId

SPAN_S = 1.0
"""Requests count for this long at least, and less than twice as long."""
MAX_PROMPTS = 10_000

_Counts = dict[EndpointId, int]
_NOBODY: Mapping[EndpointId, int] = {}


class _Prompt:
    """Counts of one prompt in the present span of time and in the one before."""

    __slots__ = ("before", "lately", "span")

    def __init__(self, span: int) -> None:
        self.span = span
        self.lately: _Counts = {}
        self.before: _Counts = {}

    def turn(self, span: int) -> None:
        """Let go of what was counted before the last span."""
        if span != self.span:
            self.before = self.lately if span == self.span + 1 else {}
            self.lately = {}
            self.span = span


class Twins:
    """Belongs to one PoolState. Of the prompts that came last, `limit` at most are remembered."""

    def __init__(self, *, span_s: float = SPAN_S, limit: int = MAX_PROMPTS) -> None:
        self._span_s = span_s
        self._limit = limit
        self._prompts: OrderedDict[int, _Prompt] = OrderedDict()

    def __len__(self) -> int:
        return len(self._prompts)

    def of(self, keys: tuple[int, ...], now: float) -> Mapping[EndpointId, int]:
        """Requests of this prompt lately, by endpoint; those that were given none are left out."""
        held = self._prompts.get(keys[-1]) if keys else None
        if held is None:
            return _NOBODY
        held.turn(int(now // self._span_s))
        counts = held.before.copy()
        for ident, count in held.lately.items():
            counts[ident] = counts.get(ident, 0) + count
        return counts

    def sent(self, keys: tuple[int, ...], endpoint: EndpointId, now: float) -> None:
        """A request of this prompt goes there. A prompt without a whole block has no twins."""
        if not keys:
            return
        span = int(now // self._span_s)
        held = self._prompts.pop(keys[-1], None) or _Prompt(span)
        self._prompts[keys[-1]] = held
        held.turn(span)
        held.lately[endpoint] = held.lately.get(endpoint, 0) + 1
        if len(self._prompts) > self._limit:
            self._prompts.popitem(last=False)
