"""A decision as people read it."""

from typing import Any

import pytest

from epp.framework import Role
from epp.observe.explain_text import printable, text
from tests.fakes.desk import ask
from tests.fakes.watched import watched

LONG = list(range(2000))


async def _told(mode: str = "normal", **request: Any) -> str:
    """The only decision of a pool of two, half a minute later."""
    async with watched() as (desk, _, explain):
        desk.switch.switch(mode)
        await desk.route(**request)
        (entry,) = explain.last()
        return text(entry, entry["at"] + 30.4)


async def test_what_nobody_rated_is_said_so() -> None:
    told = await _told("random", body=ask())
    assert "\nnobody was rated\n" in told
    assert "any_ready: anybody who is ready; no better: mode" in told
    assert "profile random" in told
    assert told.endswith("prefill       mode; decider prefix-based-pd-decider\n")


async def test_a_request_without_a_prompt_is_told_by_what_it_has() -> None:
    told = await _told(method="GET", path="/v1/models")
    assert "/v1/models (passthrough), no model named" in told
    assert "load_only: load alone; no better: unscored" in told
    assert "Z, 30 s ago, in " in told


async def test_one_engine_for_all_of_it_says_which_wish_that_was() -> None:
    async with watched(roles=[Role.DECODE, Role.PREFILL]) as (desk, _, explain):
        await desk.route(ask(LONG, n=2))
        told = text(explain.last()[0], 0.0)
    assert "prefill       not-splittable (n)" in told
    assert "Z, 0 s ago" in told  # clocks may disagree; nothing was decided in the future


async def test_a_match_says_whose_word_it_is_and_what_it_is_worth() -> None:
    async with watched(1) as (desk, _, explain):
        for _ in range(2):
            await desk.route(ask(LONG, model="m"))
        told = text(explain.last()[0], 0.0)
    row = next(line for line in told.splitlines() if line.startswith("->"))
    assert "1984 predicted x0.90" in row


async def test_of_many_left_out_the_rest_is_counted() -> None:
    async with watched(roles=[Role.DECODE, *[Role.PREFILL] * 20]) as (desk, _, explain):
        await desk.route(ask())
        told = text(explain.last()[0], 0.0)
    (line,) = [line for line in told.splitlines() if line.startswith("left out: 20 by role:")]
    assert line.endswith(" and 4 more")
    assert line.count(":8000") == 16


@pytest.mark.parametrize("text_of_a_client", ["a\nb", "\x1b[2J", "\u202e", "\x9b"])
def test_nothing_that_a_client_wrote_moves_a_cursor(text_of_a_client: str) -> None:
    assert printable(text_of_a_client).isprintable()


async def test_every_scorer_is_shown_raw_and_weighted() -> None:
    async with watched() as (desk, _, explain):
        await desk.route(ask())
        entry = explain.last()[0]
        told = text(entry, 0.0)
    row = entry["table"][0]
    assert sum(row["weighted"].values()) == pytest.approx(row["total"], abs=1e-4)
    for name, weight in entry["weights"].items():
        assert f"{name} x{weight:g}" in told
        assert f"{row['scores'][name]:.4f} = {row['weighted'][name]:.4f}" in told
