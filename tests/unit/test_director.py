"""The order of steps, the way down the ladder, and what the pool is told afterwards."""

from typing import Any

import pytest

from epp import protocol
from epp.errors import BadRequest, NoEndpoint
from epp.framework import Rung
from epp.request.director import PickDirector, PickSettings
from tests.fakes.desk import Desk, ask, open_desk, post

TOKENS = list(range(640))


def fail(*_: object, **__: object) -> None:
    raise KeyError


async def test_a_request_is_routed_with_an_id_and_a_prediction() -> None:
    async with open_desk() as desk:
        route = await desk.served(ask(TOKENS))
        again = await desk.route(ask(TOKENS))
    headers, second = dict(route.set_headers), dict(again.set_headers)
    assert headers[protocol.PREDICTED_CACHED_TOKENS] == "0"
    assert second[protocol.PREDICTED_CACHED_TOKENS] == "640"
    assert len(headers[protocol.DECISION_ID]) == 32
    assert headers[protocol.DECISION_ID] != second[protocol.DECISION_ID]
    assert route.destination == again.destination
    assert route.body is None


async def test_precise_matches_stand_on_the_first_rung_only_where_tokens_are_exact() -> None:
    async with open_desk() as desk:
        await desk.route(ask(TOKENS))
        keys = desk.witness.decisions[0][1].keys
        life = desk.pool.endpoints.incarnation(desk.members[2].id)
        assert life is not None
        desk.index.store(life, keys)
        assert desk.witness.last.rung is Rung.PREDICTED  # no live writer
        await desk.route(ask("text " * 100))
        decision, request, why = desk.witness.decisions[-1]
    assert not request.exact
    assert (decision.rung, why) == (Rung.PREDICTED, "ok")
    assert decision.reasons[-1] == "tokens no tokenizer"


async def test_several_destinations_come_best_first() -> None:
    async with open_desk(settings=PickSettings(destinations=3)) as desk:
        first = await desk.served(ask(TOKENS))
        second = await desk.route(ask(TOKENS))
    assert len(set(first.destination.split(","))) == 3
    assert second.destination.split(",")[0] == first.destination.split(",")[0]


async def test_a_wrong_request_is_refused_and_not_charged() -> None:
    async with open_desk() as desk:
        outcome = await desk.decide(b'{"model":')
        assert isinstance(outcome, BadRequest)
        assert desk.witness.refusals == [outcome]
        assert desk.reserved() == 0


async def test_nobody_in_the_pool_is_503_and_says_so() -> None:
    async with open_desk(0) as desk:
        outcome = await desk.decide(ask())
    assert isinstance(outcome, NoEndpoint)
    assert (outcome.status, outcome.reason) == (503, "rejected-no-endpoints")


@pytest.mark.parametrize("mode", ["normal", "load-only", "random"])
async def test_nobody_ready_is_503_in_every_mode(mode: str) -> None:
    async with open_desk() as desk:
        desk.switch.switch(mode)
        for member in desk.members:
            desk.pool.endpoints.set_ready(member.id, False, desk.now)
        assert isinstance(await desk.decide(ask()), NoEndpoint)


@pytest.mark.parametrize("mode", ["normal", "load-only", "random"])
@pytest.mark.parametrize("body", [ask(), None], ids=["scored", "unscored"])
async def test_the_subset_holds_in_every_mode(mode: str, body: Any) -> None:
    method = "POST" if body else "GET"
    async with open_desk() as desk:
        desk.switch.switch(mode)
        for _ in range(20):
            route = await desk.route(body, method=method, subset=("10.0.0.2:8000",))
            assert route.destination == "10.0.0.2:8000"
        assert isinstance(await desk.decide(body, method=method, subset=()), NoEndpoint)
        outside = await desk.decide(body, method=method, subset=("10.0.9.9:8000",))
        assert isinstance(outside, NoEndpoint)
        assert desk.witness.failures == []


async def test_a_get_goes_to_a_ready_endpoint_and_is_no_load() -> None:
    async with open_desk() as desk:
        route = await desk.route(method="GET", path="/v1/models")
        assert desk.reserved() == 0
        decision, request, why = desk.witness.decisions[0]
        route.progress.response_headers(200, None)
        route.progress.finished()
    assert (decision.rung, why, request.api) == (Rung.LOAD_ONLY, "unscored", "passthrough")
    assert decision.reasons[0] == "load only: unknown path"


async def test_load_only_mode_ignores_prefixes_and_random_mode_everything() -> None:
    async with open_desk() as desk:
        warm = (await desk.route(ask(TOKENS))).destination
        desk.switch.switch("load-only")
        assert (await desk.route(ask(TOKENS))).destination != warm
        assert (desk.witness.last.rung, desk.witness.decisions[-1][2]) == (Rung.LOAD_ONLY, "mode")
        desk.switch.switch("random")
        seen = {(await desk.route(ask(TOKENS))).destination for _ in range(60)}
        assert len(seen) == 4
        assert desk.witness.last.rung is Rung.ANY_READY
        desk.switch.switch("normal")
        await desk.route(ask(TOKENS))
        assert desk.witness.last.rung is Rung.PREDICTED


async def test_a_look_up_that_raises_costs_one_rung_and_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_desk() as desk:
        monkeypatch.setattr(desk.pool, "candidates", fail)
        await desk.route(ask(TOKENS))
        decision, _, why = desk.witness.decisions[0]
        assert desk.witness.failures == ["score"]
        assert (decision.rung, why, decision.profile) == (Rung.LOAD_ONLY, "failed", "load-only")


async def test_where_even_load_cannot_be_rated_any_ready_endpoint_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_desk() as desk:
        monkeypatch.setattr("epp.request.choice.schedule", fail)
        await desk.route(ask(TOKENS))
        decision, _, why = desk.witness.decisions[0]
        assert desk.witness.failures == ["score", "load"]
        assert (decision.rung, why) == (Rung.ANY_READY, "failed")


async def test_a_failing_charge_does_not_cost_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_desk() as desk:
        monkeypatch.setattr(desk.pool, "charge", fail)
        assert (await desk.route(ask())).destination
        assert desk.witness.failures == ["charge"]


async def test_a_parser_that_raises_gives_load_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_desk() as desk:
        monkeypatch.setattr("epp.request.apis.catalog.parse", fail)
        await desk.route(ask())
        assert desk.witness.failures == ["understand"]
        assert desk.witness.decisions[0][2] == "failed"


async def test_the_answer_is_charged_by_its_own_limit_within_bounds() -> None:
    async with open_desk(settings=PickSettings(max_output_tokens=100)) as desk:
        await desk.route(ask(max_tokens=30))
        await desk.route(ask(max_tokens=30_000))
        await desk.route(
            {"model": "m", "messages": [{"role": "user", "content": "x"}]},
            path="/v1/chat/completions",
        )
        outputs = [request.output_tokens for _, request, _ in desk.witness.decisions]
    assert outputs == [30, 100, 100]


async def test_a_body_that_nobody_understood_is_charged_by_its_size_within_bounds() -> None:
    async with open_desk() as desk:
        await desk.route(b"x" * 4000, path="/unknown")
        await desk.route(b"x" * 400_000, path="/unknown")
        sizes = [request.prompt_tokens for _, request, _ in desk.witness.decisions]
        assert desk.reserved() == 2
    assert sizes == [1000, 4096]


def _ends(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    told: list[str] = []
    for name in ("response_headers", "first_byte", "finished", "reset"):

        def note(*_: object, _name: str = name, **__: object) -> None:
            told.append(_name)

        monkeypatch.setattr(desk.pool, name, note)
    return told


async def test_each_thing_is_told_to_the_pool_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_desk() as desk:
        told = _ends(desk, monkeypatch)
        progress = (await desk.route(ask())).progress
        for _ in range(2):
            progress.response_headers(200, None)
        for _ in range(2):
            progress.body(1)
        for _ in range(2):
            progress.finished()
        progress.reset(answered=True)
        progress.response_headers(200, None)
        progress.body(1)
        assert told == ["response_headers", "first_byte", "finished"]
        assert desk.witness.answers == [(200, True)]


async def test_a_reset_is_the_end_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_desk() as desk:
        told = _ends(desk, monkeypatch)
        progress = (await desk.route(ask())).progress
        progress.reset(answered=False)
        progress.reset(answered=True)
        progress.finished()
        assert told == ["reset"]


async def test_every_end_releases_the_load() -> None:
    async with open_desk() as desk:
        for end in ("finished", "reset"):
            progress = (await desk.route(ask(TOKENS))).progress
            assert desk.reserved() == 1
            if end == "finished":
                progress.response_headers(200, None)
                progress.body(1)
                progress.finished()
            else:
                progress.reset(answered=False)
            assert desk.reserved() == 0


async def test_an_answer_from_elsewhere_is_noticed() -> None:
    async with open_desk() as desk:
        route = await desk.route(ask())
        route.progress.response_headers(503, "10.9.9.9:1")
        assert desk.witness.answers == [(503, False)]


async def test_a_pool_that_cannot_be_read_at_all_is_our_own_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("pool")

    async with open_desk() as desk:
        monkeypatch.setattr(desk.pool, "ready", fail)
        monkeypatch.setattr(desk.pool, "candidates", fail)
        director: PickDirector = desk.director
        failed = None
        try:
            await director.decide(post(ask()))
        except KeyError as error:
            failed = error
        assert failed is not None


@pytest.mark.parametrize("bad", [{"tokens_s": 0}, {"tokens_s": 1}, {"destinations": 0}])
def test_settings_that_contradict_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        PickSettings(**bad)
