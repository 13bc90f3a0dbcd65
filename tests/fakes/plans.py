"""Plans and profiles for tests, built as a configuration builds them or put together by hand."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from epp.framework import Candidates, Column, Mask, Request
from epp.plugins.pickers.max_score import MaxScore
from epp.request.ballot import Ballot
from epp.request.plan.default import default_config
from epp.request.plan.live import Built, BuiltProfile, Named, Rater, build
from epp.request.plan.resolve import resolve


def default_built(split: str = "prefix", threshold_tokens: int = 512, **counts: int) -> Built:
    """What runs without a configuration, by its flags."""
    return build(resolve(default_config(split, threshold_tokens, **counts), "default"))


def with_profile(built: Built, name: str, profile: BuiltProfile) -> Built:
    """The same with another profile in the place of one."""
    return replace(built, profiles={**built.profiles, name: profile})


def profile(
    *scorers: tuple[str, Any, float],
    filters: Mapping[str, Any] | None = None,
    picker: Any = None,
    name: str = "t",
) -> BuiltProfile:
    """Scorers by name with their weights, filters by name."""
    return BuiltProfile(
        name=name,
        filters=tuple(Named(word, one) for word, one in (filters or {}).items()),
        scorers=tuple(Rater(word, one, weight, frozenset()) for word, one, weight in scorers),
        picker=Named("picker", picker or MaxScore()),
    )


class Fixed:
    """Rates by a table of pod names, whatever it is told."""

    def __init__(self, scores: Mapping[str, float] | None = None, rest: float = 0.0) -> None:
        self.scores = scores or {}
        self.rest = rest

    def score(self, _: Request, candidates: Candidates, /) -> list[float]:
        return [self.scores.get(ident.name, self.rest) for ident in candidates.ids]


class Only:
    """Keeps the pods of these names."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def keep(self, _: Request, candidates: Candidates, /) -> list[bool]:
        return [ident.name in self.names for ident in candidates.ids]


class Broken:
    """Raises whatever it is asked."""

    def score(self, _: Request, __: Candidates, /) -> Column:
        raise ZeroDivisionError

    def keep(self, _: Request, __: Candidates, /) -> Mask:
        raise ZeroDivisionError

    def pick(self, *_: object) -> list[int]:
        raise ZeroDivisionError

    def decide(self, *_: object) -> str:
        raise ZeroDivisionError

    def course(self, *_: object) -> Any:
        raise ZeroDivisionError

    def served(self, *_: object) -> None:
        raise ZeroDivisionError

    def marks(self, *_: object) -> Any:
        raise ZeroDivisionError


class Booth:
    """A ballot with hand-driven clocks that writes down what plugins did wrong."""

    def __init__(self) -> None:
        self.now = 100.0
        self.cpu = 0.0
        self.failures: list[tuple[str, str]] = []
        self.ballot = Ballot(
            clock=lambda: self.now,
            cpu=lambda: self.cpu,
            failed=lambda plugin, why: self.failures.append((plugin, why)),
        )
