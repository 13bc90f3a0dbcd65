"""Models that the gateway wants called by another name, and what becomes of them under load."""

import gzip
from typing import Any

import msgspec
import pytest

from epp import protocol
from epp.errors import ModelNotFound, Saturated
from epp.framework import Rung
from epp.request.apis.catalog import Rules
from epp.request.exchange import ModelName
from epp.request.offload import BusyError
from epp.request.understanding import SMALL_BYTES
from tests.fakes.desk import Desk, ask, open_desk

TOKENS = list(range(640))
REWRITE = protocol.MODEL_REWRITE[0]
TO = {REWRITE: "inner"}


async def test_a_rewritten_request_differs_in_its_models_name_alone() -> None:
    body = b'{"prompt": [1, 2], "model" : "nice", "temperature": 1e0, "temperature": 2}'
    async with open_desk() as desk:
        route = await desk.route(body, headers=TO)
        decision, request, _ = desk.witness.decisions[0]
    assert route.body == body.replace(b"nice", b"inner")
    assert route.model == ModelName("nice", "inner")
    assert (request.model, request.target_model) == ("nice", "inner")
    assert decision.reasons[-1] == "model rewritten"


async def test_prompts_meet_under_the_name_that_the_engine_reads() -> None:
    async with open_desk() as desk:
        await desk.route(ask(TOKENS, model="inner"))
        await desk.route(ask(TOKENS, model="nice"), headers=TO)
        await desk.route(ask(TOKENS, model="nice"))
        first, second, third = [request.keys for _, request, _ in desk.witness.decisions]
    assert first == second != third


async def test_engines_are_asked_for_tokens_under_their_own_name() -> None:
    asked: list[str] = []

    async def tokenizer(model: str, fields: Any) -> bytes:
        asked.append(model)
        return b'{"tokens":[1,2,3]}'

    async with open_desk(tokenizer=tokenizer) as desk:
        await desk.route(ask("text " * 100), headers=TO)
    assert asked == ["inner"]


@pytest.mark.parametrize(
    ("headers", "request_of"),
    [
        ({REWRITE: "m"}, ask()),
        ({REWRITE: "a,b"}, ask()),
        ({}, ask()),
    ],
    ids=["the same name", "no name", "nothing said"],
)
async def test_a_request_that_need_not_change_does_not(
    headers: dict[str, str], request_of: dict[str, Any]
) -> None:
    async with open_desk() as desk:
        route = await desk.route(request_of, headers=headers)
        _, request, _ = desk.witness.decisions[0]
    assert (route.body, route.model) == (None, None)
    assert (request.model, request.target_model) == ("m", "m")


async def test_a_compressed_body_keeps_its_name_and_says_so() -> None:
    body = gzip.compress(msgspec.json.encode(ask(TOKENS)))
    async with open_desk() as desk:
        route = await desk.route(body, headers={"content-encoding": "gzip", **TO})
        decision, request, _ = desk.witness.decisions[0]
    assert (route.body, route.model, request.target_model) == (None, None, "m")
    assert "model not rewritten: not plain JSON" in decision.reasons


@pytest.mark.parametrize("path", ["/metrics", "/v1/models"])
async def test_a_path_that_nobody_knows_is_passed_on_whatever_the_header_says(path: str) -> None:
    async with open_desk() as desk:
        route = await desk.route(b'{"model":"m"}', path=path, headers=TO)
        _, request, _ = desk.witness.decisions[0]
    assert (route.body, route.model) == (None, None)
    assert (request.model, request.target_model) == ("", "")


def too_busy(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    async def busy(*_: object) -> None:
        raise BusyError

    monkeypatch.setattr(desk.offload, "run", busy)


async def test_without_time_to_rewrite_a_request_is_to_be_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_desk() as desk:
        too_busy(desk, monkeypatch)
        large = ask("x" * SMALL_BYTES)
        outcome = await desk.decide(large, headers=TO)
        assert isinstance(outcome, Saturated)
        assert (outcome.status, outcome.code) == (429, "ResourceExhausted")
        assert desk.reserved() == 0
        await desk.route(large)
        await desk.route(b"x", path="/unknown", headers=TO)
    assert [decision.rung for decision, *_ in desk.witness.decisions] == [Rung.LOAD_ONLY] * 2


async def test_a_rewrite_that_raises_passes_the_request_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bytes:
        raise KeyError

    async with open_desk() as desk:
        monkeypatch.setattr("epp.request.apis.rewrite.with_model", fail)
        route = await desk.route(ask(), headers=TO)
    assert (route.body, desk.witness.failures) == (None, ["understand"])


async def test_the_list_of_known_models_is_of_engines_names() -> None:
    async with open_desk(rules=Rules(known_models=frozenset({"inner"}))) as desk:
        await desk.route(ask(model="nice"), headers=TO)
        outcome = await desk.decide(ask(model="nice"))
    assert isinstance(outcome, ModelNotFound)
