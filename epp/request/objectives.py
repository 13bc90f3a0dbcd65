"""What operators declare of requests: priorities by objective, and other names of models. Pure.

A request names its objective; the objective has a priority. A model's name is looked up among the
rules of all rewrites: a rule that names this very model comes before one that fits every model, of
two such rules that of the older rewrite comes first, and within a rewrite, or among rewrites of one
age, the first in order. The rule's targets share the requests by their weights.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from operator import itemgetter

from epp.config.objectives_file import Declared, ModelRewrite, Rule
from epp.framework import Chance

DEFAULT_PRIORITY = 0
"""Of a request without an objective, of an unknown one, and of one that sets none (fault G06)."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What a rule says of one request."""

    by: str
    """Name of the rewrite that the rule belongs to."""
    model: str
    """The name that the engine is asked for; it may be the client's own."""


@dataclass(frozen=True, slots=True)
class Shares:
    """A rule's targets, ready to be drawn from."""

    by: str
    models: tuple[str, ...]
    bounds: tuple[int, ...]
    """Sum of the weights up to and with each of them."""

    @classmethod
    def of(cls, rewrite: ModelRewrite, rule: Rule) -> "Shares":
        """Weights are all or none: beside a weighted target those without one get nothing, and
        where none has a weight all are equal."""
        weighted = [target for target in rule.targets if target.weight is not None]
        targets = weighted or rule.targets
        weights = [1 if target.weight is None else target.weight for target in targets]
        return cls(
            by=rewrite.metadata.name,
            models=tuple(target.modelRewrite for target in targets),
            bounds=tuple(accumulate(weights)),
        )

    def draw(self, chance: Chance) -> Rewritten:
        total = self.bounds[-1]
        point = min(int(chance.random() * total), total - 1)
        return Rewritten(self.by, self.models[bisect_right(self.bounds, point)])


@dataclass(frozen=True, slots=True)
class Objectives:
    """All that is declared, by what requests say."""

    priorities: Mapping[str, int] = field(default_factory=dict[str, int])
    exact: Mapping[str, Shares] = field(default_factory=dict[str, Shares])
    """By the client's name of the model: the rule that holds for it."""
    generic: Shares | None = None
    """The rule for all other models."""

    @classmethod
    def of(cls, declared: Declared) -> "Objectives":
        exact: dict[str, Shares] = {}
        generic: Shares | None = None
        for rewrite in _oldest_first(declared.rewrites):
            for rule in rewrite.spec.rules:
                shares = Shares.of(rewrite, rule)
                for match in rule.matches:
                    exact.setdefault(match.model.value, shares)
                if not rule.matches and generic is None:
                    generic = shares
        priorities = {
            one.metadata.name: one.spec.priority or DEFAULT_PRIORITY for one in declared.objectives
        }
        return cls(priorities, exact, generic)

    @property
    def rewrites(self) -> bool:
        """Whether a model may have to be called by another name."""
        return bool(self.exact) or self.generic is not None

    def priority(self, objective: str) -> int:
        return self.priorities.get(objective, DEFAULT_PRIORITY)

    def rewritten(self, model: str, chance: Chance) -> Rewritten | None:
        """The name for a request of this model, by the client's word; None where no rule fits, and
        for a request that names no model."""
        shares = self.exact.get(model, self.generic) if model else None
        return None if shares is None else shares.draw(chance)


NOTHING = Objectives()


class LiveObjectives:
    """The declarations in force, and the one place where others take over."""

    def __init__(self, chance: Chance, current: Objectives = NOTHING) -> None:
        self._chance = chance
        self._current = current

    @property
    def current(self) -> Objectives:
        return self._current

    def swap(self, current: Objectives) -> None:
        """From the next request on, these."""
        self._current = current

    def priority(self, objective: str) -> int:
        return self._current.priority(objective)

    def rewritten(self, model: str) -> Rewritten | None:
        return self._current.rewritten(model, self._chance)


def _oldest_first(rewrites: tuple[ModelRewrite, ...]) -> list[ModelRewrite]:
    dated = [(one.metadata.creationTimestamp, one) for one in rewrites]
    known = [(when, one) for when, one in dated if when is not None]
    known.sort(key=itemgetter(0))
    return [*(one for _, one in known), *(one for when, one in dated if when is None)]
