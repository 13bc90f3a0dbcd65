"""Rules of model rewrites in a decision: header first, then the rules, and the engine's name."""

from collections import Counter
from typing import Any

import msgspec
import pytest

from epp import protocol
from epp.errors import ModelNotFound, Saturated
from epp.framework import Request
from epp.request.apis.catalog import Rules
from epp.request.exchange import ModelName, Route
from epp.request.offload import BusyError
from epp.request.understanding import SMALL_BYTES
from tests.fakes.declarations import declared
from tests.fakes.desk import Desk, ask, open_desk
from tests.fakes.watched import watched

REWRITE, OBJECTIVE = protocol.MODEL_REWRITE[0], protocol.OBJECTIVE[0]
FORM = {"content-type": "multipart/form-data; boundary=b"}


def sent(route: Route) -> Any:
    assert route.body is not None
    return msgspec.json.decode(route.body)["model"]


def last(desk: Desk) -> Request:
    return desk.witness.decisions[-1][1]


async def test_a_rule_names_the_model_that_the_engine_is_asked_for() -> None:
    async with open_desk() as desk:
        desk.objectives.swap(declared(rewrites={"r": [("m", "inner")]}))
        route = await desk.route(b'{"prompt": [1], "model" : "m", "temperature": 1e0}')
        assert route.body == b'{"prompt": [1], "model" : "inner", "temperature": 1e0}'
        assert route.model == ModelName("m", "inner")
        assert (last(desk).model, last(desk).target_model) == ("m", "inner")
        assert last(desk).rewritten_by == "r"
        assert desk.witness.last.reasons[-1] == "model rewritten by r"


async def test_a_rule_for_the_clients_name_beats_the_header() -> None:
    async with open_desk() as desk:
        desk.objectives.swap(declared(rewrites={"r": [("m", "by-rule"), ("by-header", "never")]}))
        assert sent(await desk.route(ask(), headers={REWRITE: "by-header"})) == "by-rule"
        assert sent(await desk.route(ask(model="n"), headers={REWRITE: "by-header"})) == "by-header"
        assert last(desk).rewritten_by == "header"


async def test_a_rule_may_leave_a_share_of_requests_their_name() -> None:
    """Also against the header: the rule decides, and says so."""
    async with open_desk() as desk:
        desk.objectives.swap(declared(rewrites={"canary": [("m", "m=3,new=1")]}))
        names: Counter[str] = Counter()
        for _ in range(200):
            route = await desk.route(ask(), headers={REWRITE: "other"})
            names[last(desk).target_model] += 1
            assert (route.body is None) == (last(desk).target_model == "m")
            assert last(desk).rewritten_by == "canary"
        assert names.keys() == {"m", "new"}
        assert 25 <= names["new"] <= 75


async def test_prompts_meet_under_the_name_that_a_rule_gives() -> None:
    tokens = list(range(640))
    async with open_desk() as desk:
        await desk.route(ask(tokens, model="inner"))
        desk.objectives.swap(declared(rewrites={"r": [("m", "inner")]}))
        await desk.route(ask(tokens))
        first, second = [request.keys for _, request, _ in desk.witness.decisions]
    assert first == second != ()


async def test_a_form_keeps_its_name_and_no_rule_is_said_to_have_changed_it() -> None:
    body = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--b--\r\n'
    async with open_desk() as desk:
        desk.objectives.swap(declared(rewrites={"r": [("m", "inner")]}))
        route = await desk.route(body, path="/v1/audio/transcriptions", headers=FORM)
        assert (route.body, route.model, last(desk).target_model) == (None, None, "m")
        assert last(desk).rewritten_by == ""
        assert "model not rewritten: not plain JSON" in desk.witness.last.reasons


@pytest.mark.parametrize("path", ["/metrics", "/tokenize"])
async def test_a_request_without_a_model_has_nothing_to_rewrite(path: str) -> None:
    async with open_desk() as desk:
        desk.objectives.swap(declared(rewrites={"r": [("", "inner")]}))
        route = await desk.route({"prompt": "p"}, path=path)
        assert (route.body, last(desk).target_model, last(desk).rewritten_by) == (None, "", "")


async def test_the_list_of_known_models_holds_for_the_name_that_a_rule_gives() -> None:
    async with open_desk(rules=Rules(known_models=frozenset({"inner"}))) as desk:
        desk.objectives.swap(declared(rewrites={"r": [("m", "inner"), ("inner", "gone")]}))
        await desk.route(ask())
        for model in ("inner", "other"):
            assert isinstance(await desk.decide(ask(model=model)), ModelNotFound)


async def test_without_time_to_look_for_a_rule_a_request_is_to_be_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def busy(*_: object) -> None:
        raise BusyError

    large = ask("x" * SMALL_BYTES)
    async with open_desk() as desk:
        monkeypatch.setattr(desk.offload, "run", busy)
        await desk.route(large)
        desk.objectives.swap(declared({"gold": 1}))
        await desk.route(large)
        desk.objectives.swap(declared(rewrites={"r": [("n", "inner")]}))
        assert isinstance(await desk.decide(large), Saturated)
        await desk.route(b"x", path="/unknown")


async def test_an_objective_gives_its_priority_and_each_rule_its_count() -> None:
    async with watched() as (desk, metrics, explain):
        desk.objectives.swap(declared({"gold": 10}, {"r": [("m", "inner"), ("same", "same")]}))
        for model, headers in (
            ("m", {OBJECTIVE: "gold"}),
            ("same", {OBJECTIVE: "unknown"}),
            ("n", {REWRITE: "inner"}),
            ("plain", {}),
        ):
            await desk.route(ask(model=model), headers=headers)
        metrics.refresh(desk.now)
        page = metrics.text().decode().splitlines()
        base = 'llm_d_epp_request_total{fairness_id="default-flow",model_name="m",'
        assert f'{base}priority="10",target_model_name="inner"}} 1.0' in page
        rewrites = [line for line in page if line.startswith("llm_d_epp_model_rewrite_decisions_t")]
        assert [line.partition("{")[2] for line in rewrites] == [
            'model_name="m",model_rewrite_name="r",target_model="inner"} 1.0',
            'model_name="same",model_rewrite_name="r",target_model="same"} 1.0',
            'model_name="n",model_rewrite_name="header",target_model="inner"} 1.0',
        ]
        shown = explain.last()[-1]
        assert (shown["objective"], shown["priority"]) == ("gold", 10)
