"""A snapshot as records: all that a writer knew at one point of its sequence, in parts. Pure.

A part is as large as a reader applies in a few milliseconds, so that a large cache does not hold up
its decisions (fault A20).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from .records import BlockChange, Part, Record, TierChange, encode

KEYS_PER_PART = 10_000


def parts(
    head: Record,
    present: Sequence[int],
    tiers: Mapping[str, Sequence[int]],
    *,
    keys_per_part: int = KEYS_PER_PART,
) -> tuple[bytes, ...]:
    """Serialised parts. `head` says who speaks, of which life, at which `seq`, and with which load;
    `present` are the keys on the GPU, `tiers` those on each slower tier."""
    changes = list(_changes(present, tiers, keys_per_part)) or [BlockChange()]
    of = len(changes)
    return tuple(
        encode(
            replace(
                head,
                blocks=replace(change, reset=index == 0),
                status=head.status if index == 0 else None,
                part=Part(index, of),
            )
        )
        for index, change in enumerate(changes)
    )


def _changes(
    present: Sequence[int], tiers: Mapping[str, Sequence[int]], most: int
) -> Iterator[BlockChange]:
    for keys in _cut(present, most):
        yield BlockChange(stored=keys)
    for name, held in tiers.items():
        for keys in _cut(held, most):
            yield BlockChange(tiers=(TierChange(name, keys),))


def _cut(keys: Sequence[int], most: int) -> Iterable[tuple[int, ...]]:
    return (tuple(keys[at : at + most]) for at in range(0, len(keys), most))
