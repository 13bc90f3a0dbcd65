"""What the two indexes' answers are worth, for all members at once. Pure.

A block on the GPU costs nothing. One on a slower tier costs the time to load it, which is worth it
as far as that is less than the time to compute it again on the same pod. So a token of it counts
for what is saved, and everything that reads credited tokens counts the load by its time.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from epp.framework import NO_MATCH, Column, Mask, Match, Source

from .prefix import Depths, TierDepths


@dataclass(slots=True)
class Matches:
    """One row a member. Only the columns are shared."""

    tokens: Column
    credited: Column
    """Tokens that a decision may count on."""
    precise: Column
    """1 where the engine's own events say so, else 0."""
    trust: Column
    loaded: Mapping[str, Column] = field(default_factory=dict[str, Column])
    """Of the precise ones, those that come from each slower tier."""

    def columns(self) -> Mapping[str, Column]:
        return {
            "matched_tokens": self.tokens,
            "credited_tokens": self.credited,
            "precise": self.precise,
        }

    def of(self, row: int) -> Match:
        tokens = int(self.tokens.item(row))
        if not tokens:
            return NO_MATCH
        if not self.precise.item(row):
            return Match(tokens, Source.PREDICTED, self.trust.item(row))
        loaded = tuple(
            (name, int(column[row])) for name, column in self.loaded.items() if column[row]
        )
        worth = float(self.credited[row]) / tokens if loaded else 1.0
        return Match(tokens, Source.PRECISE, worth, loaded)


def matches(
    precise: TierDepths,
    predicted: Depths,
    *,
    fresh: Callable[[], Mask],
    trust: Column,
    prefill_tokens_per_s: Column,
    block_tokens: int,
    prompt_tokens: int,
    load_tokens_per_s: Callable[[str], Column],
) -> Matches:
    """The better of both, in tokens: leading blocks by the engines' word, and by our predictions.

    `fresh`, asked where engines have told of any: where a writer was heard lately; blocks of one
    that fell silent are predictions like ours. `trust`: what a predicted token is worth.
    `prefill_tokens_per_s`: what computing costs. `load_tokens_per_s`: what loading does, by tier.
    """
    guessed = np.minimum(predicted * float(block_tokens), prompt_tokens)
    if not precise.loaded and not np.count_nonzero(precise.gpu):
        return Matches(guessed, guessed * trust, np.zeros(len(guessed)), trust)
    told = np.minimum(precise.whole * float(block_tokens), prompt_tokens)
    loaded: dict[str, Column] = {
        name: blocks * np.float64(block_tokens) for name, blocks in precise.loaded.items()
    }
    sure = told
    for name, tokens in loaded.items():
        share = prefill_tokens_per_s / load_tokens_per_s(name)
        sure = sure - tokens * np.minimum(share, 1.0)
    heard = fresh()
    if not np.logical_and.reduce(heard):
        guessed = np.where(heard, guessed, np.maximum(guessed, sure))
        told, sure = np.where(heard, told, 0.0), np.where(heard, sure, 0.0)
    worth = guessed * trust
    better = np.logical_and(sure >= worth, told)
    return Matches(
        np.where(better, told, guessed),
        np.maximum(sure, worth),
        better.astype(np.float64),
        trust,
        loaded,
    )
