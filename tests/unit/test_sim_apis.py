"""Responses, messages and generations of the simulated engine: what is read and written."""

import json
from dataclasses import replace
from typing import Any

import pytest

from epp.bodies.sharing import Api
from epp.bodies.usage import ResponseWatch, Usage
from epp.sim.answers import Answer
from epp.sim.api import ApiError, Ask
from epp.sim.catalog import PARSERS, RENDERED, answer_to
from epp.sim.generate import rendered
from epp.sim.settings import EngineSettings
from epp.sim.tokenizer import ANSWER_IDS, decode, render_chat
from sidecar.transfer.openings import Opening, Verdict
from tests.fakes.split_pool import text_of

SETTINGS = EngineSettings(port=0, model="tiny", max_model_len=64)
HI = render_chat([("user", "hi")])
BODIES: dict[Api, dict[str, Any]] = {
    Api.RESPONSES: {"input": "hi", "max_output_tokens": 3},
    Api.MESSAGES: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3},
    Api.GENERATE: {"token_ids": HI, "sampling_params": {"max_tokens": 3}},
}
WITH_TEXT = [Api.RESPONSES, Api.MESSAGES]


def asked(api: Api, **more: Any) -> Ask:
    return PARSERS[api](json.dumps({**BODIES[api], **more}).encode(), SETTINGS)


def answered(api: Api, **more: Any) -> Answer:
    answer = answer_to(asked(api, **more), "r", 1)
    for choice in answer.choices:
        choice.tokens += ANSWER_IDS[:3]
        choice.cached_tokens = 2
        choice.finish_reason = "length"
    return answer


def streamed(api: Api) -> bytes:
    whole = answered(api, stream=True)
    tokens, choice = whole.choices[0].tokens[:], whole.choices[0]
    stream = whole.opening(choice)
    choice.tokens.clear()
    for token in tokens:
        choice.tokens.append(token)
        stream += whole.piece(choice)
    return stream + whole.closing()


@pytest.mark.parametrize("api", BODIES)
def test_each_api_has_its_own_limit_and_the_same_prompt(api: Api) -> None:
    ask = asked(api)
    assert (ask.prompts, ask.limits, ask.choices) == ((HI,), (3,), 1)


def test_a_system_text_and_tools_stand_before_the_conversation() -> None:
    tools = [{"type": "function", "name": "f"}]
    expected = render_chat(
        [("system", "be brief"), ("user", "hi")], tools=json.dumps(tools, separators=(",", ":"))
    )
    assert asked(Api.RESPONSES, instructions="be brief", tools=tools).prompts == (expected,)
    assert asked(Api.MESSAGES, system="be brief", tools=tools).prompts == (expected,)
    item = {"role": "user", "content": [{"type": "input_text", "text": "hi"}]}
    assert asked(Api.RESPONSES, input=[item]).prompts == (HI,)


@pytest.mark.parametrize(
    ("api", "more", "status"),
    [
        (Api.RESPONSES, {"input": []}, 400),
        (Api.RESPONSES, {"previous_response_id": "resp_1"}, 400),
        (Api.RESPONSES, {"max_output_tokens": 0}, 400),
        (Api.RESPONSES, {"model": "other"}, 404),
        (Api.MESSAGES, {"messages": []}, 400),
        (Api.MESSAGES, {"max_tokens": None}, 400),
        (Api.GENERATE, {"token_ids": []}, 400),
        (Api.GENERATE, {"token_ids": [-1]}, 400),
        (Api.GENERATE, {"sampling_params": {"max_tokens": 1, "min_tokens": 2}}, 400),
        (Api.GENERATE, {"token_ids": [1] * 64}, 400),
    ],
)
def test_what_cannot_be_served_is_refused(api: Api, more: dict[str, Any], status: int) -> None:
    with pytest.raises(ApiError) as caught:
        asked(api, **more)
    assert caught.value.code == status


def test_members_of_other_apis_mean_nothing() -> None:
    assert asked(Api.MESSAGES, n=4, max_completion_tokens=9).limits == (3,)
    assert asked(Api.RESPONSES, max_tokens=9, min_tokens=9).limits == (3,)
    assert asked(Api.GENERATE, n=4, max_tokens=9).choices == 1
    assert asked(Api.GENERATE, sampling_params=None).limits == (16,)


@pytest.mark.parametrize("api", RENDERED)
def test_what_is_rendered_is_the_same_request(api: Api) -> None:
    parts = [{"type": "image", "source": {"data": name}} for name in "AB"]
    turns = [{"role": "user", "content": [*parts, {"type": "text", "text": "hi"}]}]
    body = {"messages": turns, "input": turns, "max_tokens": 3, "max_output_tokens": 3}
    roomy = replace(SETTINGS, max_model_len=512)
    ask = PARSERS[api](json.dumps({**body, "cache_salt": "tenant"}).encode(), roomy)
    assert len(ask.namespace.media) == 2
    again = PARSERS[Api.GENERATE](rendered(ask), roomy)
    assert replace(again, api=api) == ask
    text = json.loads(rendered(asked(Api.MESSAGES)))
    assert (text["features"], text["token_ids"]) == (None, HI)


@pytest.mark.parametrize(
    "odd",
    [
        {"mm_hashes": {"image": ["a"]}, "mm_placeholders": {}},
        {"mm_hashes": {"image": ["a"]}, "mm_placeholders": {"image": []}},
        {"mm_hashes": {"image": ["a"]}, "mm_placeholders": {"image": [{"offset": -1}]}},
    ],
)
def test_items_without_a_place_are_refused(odd: dict[str, Any]) -> None:
    with pytest.raises(ApiError):
        asked(Api.GENERATE, features=odd)


@pytest.mark.parametrize("api", BODIES)
def test_a_stream_says_what_the_whole_answer_says(api: Api) -> None:
    whole = text_of(answered(api).whole())
    assert text_of(streamed(api)) == whole
    if api in WITH_TEXT:
        assert whole == decode(ANSWER_IDS[:3])
    assert json.loads(answered(api).whole())["kv_transfer_params"] is None


@pytest.mark.parametrize("api", WITH_TEXT)
def test_both_tell_their_usage(api: Api) -> None:
    expected = Usage(len(HI), 2, 3)
    for kind, body in (
        ("application/json", answered(api).whole()),
        ("text/event-stream", streamed(api)),
    ):
        watch = ResponseWatch(kind)
        watch.feed(body)
        assert watch.finish() == expected


@pytest.mark.parametrize("api", BODIES)
@pytest.mark.parametrize("begun", [False, True], ids=["before", "after"])
def test_an_error_is_an_event_of_its_own(api: Api, *, begun: bool) -> None:
    answer = answered(api, stream=True)
    if not begun:
        answer.choices[0].tokens.clear()
    stream = answer.failing(b'{"error":{"message":"no","code":500}}')
    if begun:
        assert b"response.created" not in stream
        assert b"message_start" not in stream
    opening = Opening("text/event-stream")
    opening.feed(stream)
    assert opening.finish() is Verdict.ERROR_EVENT


@pytest.mark.parametrize("api", BODIES)
def test_where_too_little_is_cached_nothing_is_said(api: Api) -> None:
    for stream in (False, True):
        answer = answer_to(asked(api, stream=stream), "r", 1)
        assert text_of(answer.refusing()) == ""
        assert answer.ended
