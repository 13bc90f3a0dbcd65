"""What we say to other replicas, and what they have reserved on our members, added up. Pure.

Each replica says all of its own sums, again and again, under a name of one life. So nothing has to
be undone: a message that is lost heals with the next one, and a replica that died is out of the sum
when its lease has run out (DESIGN 6). What a replica says of a life that we know to be over is not
counted; of one that we haven't heard of yet it is, for the load is there.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from epp.framework import EndpointId, Incarnation

from .reservation import NONE, Sums
from .sums import MAX_SUMS, EndpointSum, ReplicaSums

MOST = 2**31 - 1
"""No sum of one endpoint is larger, whatever somebody says."""


def own(
    name: str, sums: Mapping[Incarnation, Sums], foretold: Mapping[Incarnation, Sequence[int]]
) -> ReplicaSums:
    """What one replica says of itself; with more endpoints than fit, those with most to do.

    `foretold`: keys of prompts on their way, `MAX_KEYS` in all at most.
    """
    every = [*sums, *(inc for inc in foretold if inc not in sums)]
    if len(every) > MAX_SUMS:
        every = sorted(every, key=lambda inc: -sums.get(inc, NONE).requests)[:MAX_SUMS]
    return ReplicaSums(
        name, tuple(_said(inc, sums.get(inc, NONE), foretold.get(inc, ())) for inc in every)
    )


def total(
    others: Collection[ReplicaSums], life_of: Callable[[EndpointId], Incarnation | None]
) -> dict[Incarnation, Sums]:
    """Sums of all others by our members' present lives. `life_of`: None for who is no member."""
    found: dict[Incarnation, Sums] = {}
    for replica in others:
        for one in replica.sums:
            inc = life_of(one.incarnation.endpoint) if one.requests else None
            if inc is None or 0 < one.incarnation.start_ms < inc.start_ms:
                continue
            before = found.get(inc)
            these = Sums(
                min(MOST, one.requests),
                min(MOST, one.pending),
                min(MOST, one.prefill_tokens),
                min(MOST, one.decode_blocks),
            )
            found[inc] = these if before is None else before + these
    return found


def _said(inc: Incarnation, sums: Sums, keys: Sequence[int]) -> EndpointSum:
    return EndpointSum(
        incarnation=inc,
        requests=sums.requests,
        pending=sums.pending,
        prefill_tokens=max(0, sums.prefill_tokens),
        decode_blocks=max(0, sums.decode_blocks),
        keys=keys,
    )


class Heard:
    """What was last heard of the others, as long as it may be believed."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._at = float("-inf")
        self.replicas = 0
        """Of how many others we know what they have reserved."""

    def hear(self, others: Collection[ReplicaSums], now: float) -> None:
        self._at, self.replicas = now, len(others)

    def over(self, now: float) -> bool:
        """Nobody told us for a whole lease: true once, then what we heard counts no more."""
        if not self.replicas or now - self._at < self._lease_s:
            return False
        self.replicas = 0
        return True
