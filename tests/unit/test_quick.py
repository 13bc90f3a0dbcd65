"""Frozen dataclasses with an `__init__` of our own are as those that dataclasses make."""

import inspect
import pickle
from copy import deepcopy
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace

import pytest

from epp.framework import Decision, Endpoint, Load, Request, Speeds, Stage
from epp.framework.quick import quick
from epp.request.apis.prompt import Parsed
from epp.request.exchange import Route
from epp.request.understanding import Understood


@dataclass(frozen=True, slots=True)
class Plain:
    first: int
    second: str = "two"
    listed: list[int] = field(default_factory=list[int])
    named: int = field(default=3, kw_only=True)


@quick
@dataclass(frozen=True, slots=True)
class Quick:
    first: int
    second: str = "two"
    listed: list[int] = field(default_factory=list[int])
    named: int = field(default=3, kw_only=True)


def test_fields_are_set_as_they_are_given_and_else_by_default() -> None:
    assert Quick(1) == Quick(first=1, second="two", listed=[], named=3)
    given = Quick(1, "b", [4], named=5)
    assert [getattr(given, one.name) for one in fields(given)] == [1, "b", [4], 5]


def test_every_value_has_a_default_of_its_own_from_a_factory() -> None:
    assert Quick(1).listed is not Quick(1).listed


def test_what_was_made_is_of_the_class_itself_and_cannot_be_changed() -> None:
    made = Quick(1)
    assert type(made) is Quick
    with pytest.raises(FrozenInstanceError):
        made.first = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del made.first  # type: ignore[misc]
    assert made.first == 1


def test_it_is_compared_copied_and_replaced_as_before() -> None:
    made = Quick(1, listed=[2])
    assert repr(made) == repr(Plain(1, listed=[2])).replace("Plain", "Quick")
    assert replace(made, first=3) == Quick(3, listed=[2])
    assert replace(made, first=3) != made
    assert deepcopy(made) == made
    assert pickle.loads(pickle.dumps(made)) == made


@pytest.mark.parametrize("wrong", [{}, {"first": 1, "third": 2}])
def test_wrong_arguments_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(TypeError, match="__init__"):
        Quick(**wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="positional"):
        Quick(1, "b", [], 4)  # type: ignore[misc]


@pytest.mark.parametrize(
    "kind", [Quick, Load, Speeds, Endpoint, Request, Stage, Decision, Route, Parsed, Understood]
)
def test_the_parameters_are_those_of_the_fields(kind: type) -> None:
    parameters = list(inspect.signature(kind).parameters.values())
    assert [one.name for one in parameters] == [one.name for one in fields(kind)]
    assert all(one.kind is one.KEYWORD_ONLY for one in parameters) or kind is Quick
    assert kind.__init__.__annotations__.keys() >= {one.name for one in fields(kind)}


def test_a_class_that_does_more_than_take_its_fields_is_refused() -> None:
    @dataclass(frozen=True, slots=True)
    class Checked:
        first: int

        def __post_init__(self) -> None:
            """Anything."""

    @dataclass(frozen=True)
    class Slotless:
        first: int

    for kind in (Checked, Slotless):
        with pytest.raises(TypeError, match="__post_init__, or no slots"):
            quick(kind)
