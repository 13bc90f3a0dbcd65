"""Prefer endpoints that are expected to meet the times that the request asks for, packed tightly.

Type: `latency-scorer`.

Goes by headroom: the limits of `x-llm-d-slo-ttft-ms` and `x-llm-d-slo-tpot-ms` less the times that
are expected (`predicted-latency-producer`). A limit that is not named has no say beside one that
is; without any, times count as they are, the shortest best.

- Where some endpoints meet the limits, only these are rated: by default the one that just meets
  them is best, so that the others stay free for whom no other is fast enough.
- Where none does, idle ones are rated, if there are any; else those that miss only the time between
  tokens, else those that miss only the first token, else all. The one that misses least is best.
- All others score 0, and so does an endpoint of which nothing is expected. Where that is everybody,
  use of the KV cache, queues and matches are mixed instead.

Parameters:
- `ttftWeight` (0.8; at least 0), `tpotWeight` (0.2; at least 0; not both 0): of the time until the
  answer begins and of that between two tokens. 1 and 0 suit the prefill profile of split requests.
- `headroomSelectionStrategy` (`least`): `least` or `most`, which prefers the endpoint that meets
  the limits by the most. Where none meets them, the closest is best in any case.
- `compositeKVWeight`, `compositeQueueWeight`, `compositePrefixWeight` (1; at least 0; not all 0):
  of the mix.
- `latencyPredictionInfoProducerName`, `prefixMatchInfoProducerName`: names of producers;
  predictions and matches have one source here.

Formula: `most` and missed limits `w1 * n1 + w2 * n2`, `least` 1 less that, where `n` is the
headroom between the least (0) and the most (1) of those rated and the weights add up to 1. Where
endpoints do not differ in one, the other has all the weight, and equal ones score 1. The mix is the
weighted mean of `1 - usage`, `(max - queue) / (max - min)` and `matched / total` (rules of the
Gateway API Inference Extension's llm-d router).

```yaml
- type: latency-scorer
  parameters:
    headroomSelectionStrategy: most
```
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from epp.framework import Candidates, Column, Mask, Request
from epp.framework.latency import Headroom, headroom, is_limited

_EQUAL_S = 1e-6
"""Headroom that differs by less does not differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    consumes: ClassVar = frozenset(
        {"engine-metrics", "inflight-load", "predicted-latency", "prefix-match", "tokens"}
    )
    without_effect: ClassVar = {
        "latency_prediction_info_producer_name": "predictions have one source",
        "prefix_match_info_producer_name": "an endpoint has one match, the best that is known",
    }
    spelled: ClassVar = {"composite_kv_weight": "compositeKVWeight"}

    ttft_weight: float = 0.8
    tpot_weight: float = 0.2
    headroom_selection_strategy: Literal["least", "most"] = "least"
    composite_kv_weight: float = 1.0
    composite_queue_weight: float = 1.0
    composite_prefix_weight: float = 1.0
    latency_prediction_info_producer_name: str = ""
    prefix_match_info_producer_name: str = ""

    def __post_init__(self) -> None:
        mix = {
            "compositeKVWeight": self.composite_kv_weight,
            "compositeQueueWeight": self.composite_queue_weight,
            "compositePrefixWeight": self.composite_prefix_weight,
        }
        times = {"ttftWeight": self.ttft_weight, "tpotWeight": self.tpot_weight}
        for name, weight in {**times, **mix}.items():
            if not 0.0 <= weight <= 1e9:
                raise ValueError(f"{name} must lie between 0 and 1e9")
        if not any(times.values()):
            raise ValueError("ttftWeight and tpotWeight must not both be 0")
        if not any(mix.values()):
            raise ValueError("compositeKVWeight, Queue and Prefix must not all be 0")

    def score(self, request: Request, candidates: Candidates, /) -> Column:
        if not len(candidates):
            return np.zeros(0)
        left = headroom(request, candidates)
        if not left.known.any():
            return self._mix(request, candidates)
        meets = left.fits if is_limited(request) else np.zeros_like(left.known)
        rated = meets if meets.any() else _least_bad(left, candidates)
        packed = self.headroom_selection_strategy == "least" and bool(meets.any())
        scores = np.zeros(len(candidates))
        scores[rated] = self._rate(request, left.first[rated], left.next[rated], packed=packed)
        return scores

    def _rate(self, request: Request, first: Column, following: Column, *, packed: bool) -> Column:
        """Of those that are rated; `packed`: the least headroom is best.

        By the limits that are named and have weight; where there are none, or nobody differs in
        them, by whatever the endpoints differ in, the shortest time best.
        """
        both = (
            (self.ttft_weight, request.slo_ttft_s, first),
            (self.tpot_weight, request.slo_tpot_s, following),
        )
        named = [(weight, one) for weight, limit, one in both if weight and limit is not None]
        rating = _blend(named)
        if rating is not None:
            return 1.0 - rating if packed else rating
        rating = _blend([(weight, one) for weight, _, one in both])
        return np.ones(len(first)) if rating is None else rating

    def _mix(self, request: Request, candidates: Candidates) -> Column:
        """By load and match alone."""
        usage = candidates.column("kv_usage")
        free = np.where((usage >= 0.0) & (usage <= 1.0), 1.0 - usage, 0.0)
        short = _share(-candidates.queues())
        total = request.blocks * request.block_size
        held = np.minimum(candidates.column("credited_tokens"), total) / max(total, 1)
        weights = self.composite_kv_weight + self.composite_queue_weight
        mixed = self.composite_kv_weight * free + self.composite_prefix_weight * held
        mixed += self.composite_queue_weight * (1.0 if short is None else short)
        return np.minimum(mixed / (weights + self.composite_prefix_weight), 1.0)


def _least_bad(left: Headroom, candidates: Candidates) -> Mask:
    """Who is rated where nobody meets the limits."""
    there = np.fmax(candidates.column("waiting"), 0.0) + np.fmax(candidates.column("running"), 0.0)
    idle = left.known & (np.maximum(there, candidates.column("reserved_requests")) == 0.0)
    for rated in (idle, left.known & left.first_fits, left.known & left.next_fits):
        if rated.any():
            return rated
    return left.known


def _blend(weighted: list[tuple[float, Column]]) -> Column | None:
    """The weighted mean of `_share`, less those that do not differ; None where none does."""
    shares = [(weight, each) for weight, one in weighted if (each := _share(one)) is not None]
    if len(shares) < 2:
        return shares[0][1] if shares else None
    (first_weight, first), (second_weight, second) = shares
    mean: Column = (first_weight * first + second_weight * second) / (first_weight + second_weight)
    return np.minimum(mean, 1.0)


def _share(column: Column) -> Column | None:
    """Each number's place between the least (0) and the most (1); 0 for one that is not known.
    None where they do not differ."""
    least = float(np.fmin.reduce(column))
    span = float(np.fmax.reduce(column)) - least
    if not span > _EQUAL_S:
        return None
    return np.fmax((column - least) / span, 0.0)
