"""What the two indexes' answers are worth, for all members at once. Pure.

The same rule as `charges.Trusts.match`, which takes one endpoint; a test holds them together.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from epp.framework import NO_MATCH, Column, Mask, Match, Source

from .prefix import Depths


@dataclass(frozen=True, slots=True)
class Matches:
    """One row a member. Only the columns are shared."""

    tokens: Column
    credited: Column
    """Tokens that a decision may count on."""
    precise: Column
    """1 where the engine's own events say so, else 0."""
    held: Mask
    """Where there is a match at all."""
    trust: Column

    def columns(self) -> Mapping[str, Column]:
        return {
            "matched_tokens": self.tokens,
            "credited_tokens": self.credited,
            "precise": self.precise,
        }

    def of(self, row: int) -> Match:
        if not self.held[row]:
            return NO_MATCH
        if self.precise[row]:
            return Match(int(self.tokens[row]), Source.PRECISE)
        return Match(int(self.tokens[row]), Source.PREDICTED, float(self.trust[row]))


def matches(
    precise: Depths,
    predicted: Depths,
    *,
    fresh: Mask,
    trust: Column,
    block_tokens: int,
    prompt_tokens: int,
) -> Matches:
    """The better of both, in tokens: leading blocks by the engines' word, and by our predictions.

    `fresh`: where a writer was heard lately; blocks of one that fell silent are predictions like
    ours. `trust`: what a predicted token is worth.
    """
    told = np.minimum(precise * float(block_tokens), prompt_tokens)
    guessed = np.minimum(predicted * float(block_tokens), prompt_tokens)
    most = np.maximum(told, guessed)
    held = most > 0.0
    if np.count_nonzero(told) and not np.logical_and.reduce(fresh):
        guessed = np.where(fresh, guessed, most)
        told = np.where(fresh, told, 0.0)
    worth = guessed * trust
    better = told >= worth
    return Matches(
        np.where(better, told, guessed),
        np.maximum(told, worth),
        np.logical_and(better, held).astype(np.float64),
        held,
        trust,
    )
