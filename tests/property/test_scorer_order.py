"""What the pages of scorers say of more and less: more to do never scores higher, more that is held
never lower, and a choice never falls on somebody whom the gateway or a filter has left out."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import (
    Candidates,
    Endpoint,
    Load,
    Match,
    Request,
    Source,
)
from epp.framework.registry import build_scorer
from epp.request.schedule import schedule
from tests.fakes.endpoints import endpoint
from tests.fakes.plans import Booth, Only, profile

KEYS = tuple(range(1, 17))
ASKED = Request(
    id="r",
    api="completions",
    path="/v1/completions",
    prompt_tokens=64 * len(KEYS),
    output_tokens=100,
    keys=KEYS,
    exact=True,
)
WORSE = [
    ("queue-scorer", "waiting"),
    ("load-aware-scorer", "waiting"),
    ("running-requests-size-scorer", "running"),
    ("active-request-scorer", "reserved_requests"),
    ("token-load-scorer", "reserved_prefill_tokens"),
    ("kv-cache-utilization-scorer", "kv_usage"),
    ("decode-load-scorer", "active_blocks"),
    ("cost-scorer", "waiting"),
    ("cost-scorer", "reserved_prefill_tokens"),
]


@st.composite
def loads(draw: st.DrawFn) -> Load:
    total = draw(st.integers(100, 10_000))
    return Load(
        waiting=draw(st.integers(0, 300)),
        running=draw(st.integers(0, 300)),
        kv_usage=draw(st.floats(0.0, 1.0)),
        active_blocks=float(draw(st.integers(0, total))),
        total_blocks=total,
        reserved_requests=draw(st.integers(0, 300)),
        reserved_prefill_tokens=draw(st.integers(0, 100_000)),
    )


def pool(found: list[Load], matched: list[int] | None = None) -> list[Endpoint]:
    made: list[Endpoint] = []
    for number, load in enumerate(found):
        tokens = 0 if matched is None else 64 * matched[number]
        match = Match(tokens=tokens, source=Source.PRECISE if tokens else Source.NONE)
        made.append(endpoint(number, load=load, match=match))
    return made


def score(name: str, endpoints: list[Endpoint], row: int) -> float:
    scores: Any = build_scorer(name, {}).score(ASKED, Candidates.of(endpoints))
    return float(scores[row])


@pytest.mark.parametrize(("name", "field"), WORSE)
@given(st.lists(loads(), min_size=1, max_size=6), st.data())
def test_more_to_do_never_scores_higher(
    name: str, field: str, found: list[Load], data: st.DataObject
) -> None:
    row = data.draw(st.integers(0, len(found) - 1))
    before = getattr(found[row], field)
    most = {"kv_usage": 1.0, "active_blocks": float(found[row].total_blocks or 0)}.get(field)
    more = data.draw(st.integers(before, before + 500) if most is None else st.floats(before, most))
    endpoints = pool(found)
    busier = list(endpoints)
    busier[row] = replace(endpoints[row], load=replace(found[row], **{field: more}))
    assert score(name, busier, row) <= score(name, endpoints, row) + 1e-9


@pytest.mark.parametrize("name", ["prefix-cache-scorer", "token-load-scorer", "cost-scorer"])
@given(st.lists(loads(), min_size=1, max_size=6), st.data())
def test_more_of_the_prompt_held_never_scores_lower(
    name: str, found: list[Load], data: st.DataObject
) -> None:
    row = data.draw(st.integers(0, len(found) - 1))
    held = [data.draw(st.integers(0, len(KEYS))) for _ in found]
    longer = list(held)
    longer[row] = data.draw(st.integers(held[row], len(KEYS)))
    before, after = score(name, pool(found, held), row), score(name, pool(found, longer), row)
    assert after >= before - 1e-9


class Fails:
    """Says something else than it should."""

    def __init__(self, says: Any) -> None:
        self.says = says

    def score(self, _: Request, __: Candidates, /) -> Any:
        return self.says

    keep = score
    pick = score


ODD = st.sampled_from([None, [], [float("nan")], [5.0], "x", [True] * 99])


@given(
    st.lists(loads(), min_size=1, max_size=6),
    st.sets(st.integers(0, 5)),
    st.lists(st.sampled_from(sorted({name for name, _ in WORSE})), unique=True, max_size=4),
    ODD,
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_a_choice_is_one_of_those_that_the_filters_left_whatever_plugins_say(
    found: list[Load], kept: set[int], names: list[str], odd: Any, must: bool, chance: Random
) -> None:
    endpoints = pool(found)
    plan = profile(
        *((name, build_scorer(name, {}), 1.0) for name in names),
        ("odd", Fails(odd), 1.0),
        filters={"only": Only(*map(str, kept)), "odd": Fails(odd)},
        picker=Fails(odd) if len(names) % 2 else None,
    )
    said = schedule(ASKED, Candidates.of(endpoints), plan, chance, Booth().ballot, must=must)
    allowed = {one.id for one in endpoints if one.id.name in set(map(str, kept))}
    if must:
        assert said.chosen
        assert {one.id for one in said.chosen} <= (allowed or {one.id for one in endpoints})
    else:
        assert {one.id for one in said.chosen} <= allowed
    assert all(0.0 <= value <= 1.0 for row in said.table for value in row.scores.values())
