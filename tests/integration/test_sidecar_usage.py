"""What a stream cost is known to the sidecar, though its client neither asked nor sees it."""

import json
import re
from pathlib import Path

import pytest

from epp.bodies.usage import Usage
from sidecar.http.intake import INLINE_BYTES
from tests.fakes.engines import running_engine
from tests.fakes.relays import relay_to
from tests.fakes.split_pool import prompt, split_pool, text_of
from tests.fakes.upstreams import Conversation, RawUpstream, answer

pytestmark = pytest.mark.usefixtures("each_relay")

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TOKEN = b'data: {"choices":[{"text":"a"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":1}}\n\n'
DONE = b"data: [DONE]\n\n"


def ask(path: str, **more: object) -> bytes:
    prompt = (
        {"messages": [{"role": "user", "content": "hi"}]} if "chat" in path else {"prompt": "hi"}
    )
    return json.dumps({"model": "sim", "max_tokens": 3, **prompt, **more}).encode()


async def stream(events: list[bytes]) -> RawUpstream:
    async def script(talk: Conversation) -> None:
        await talk.send(HEAD)
        for event in events:
            await talk.chunk(event)
        await talk.send(b"0\r\n\r\n")

    return RawUpstream(script)


def same(body: bytes) -> bytes:
    """An answer without what differs between any two: its id and its time."""
    return re.sub(rb'"(id":"[^"]*|created":\d+)', b"", body)


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    "more",
    [
        {"stream": True},
        {"stream": True, "stream_options": {"include_usage": False}},
        {"stream": True, "stream_options": {"include_usage": True}},
        {"stream": False},
        {},
    ],
)
async def test_a_client_sees_what_it_would_have_seen(path: str, more: dict[str, object]) -> None:
    answers, usages = [], []
    async with running_engine() as engine:
        for on in (False, True):
            async with relay_to(engine.port, request_usage=on) as rig:
                async with rig.session.post(rig.url + path, data=ask(path, **more)) as response:
                    assert response.status == 200
                    answers.append(same(await response.read()))
                usages.append((await rig.notes.last()).usage)
    assert answers[0] == answers[1]
    assert usages[1].completion_tokens == 3


async def test_the_event_is_taken_out_however_it_is_cut() -> None:
    upstream = await stream([TOKEN, USAGE[:20], USAGE[20:] + DONE[:3], DONE[3:]])
    async with upstream.running(), relay_to(upstream.port) as rig:
        async with rig.session.post(rig.url + TEXT, data=ask(TEXT, stream=True)) as response:
            assert await response.read() == TOKEN + DONE
        ended = await rig.notes.last()
    assert ended.usage == Usage(7, None, 1)
    sent = json.loads(upstream.received[0].body)
    assert sent["stream_options"] == {"include_usage": True}


async def test_a_body_is_changed_only_where_a_stream_of_tokens_is_asked_for() -> None:
    upstream = RawUpstream(answer(USAGE, fields=b"Content-Type: text/event-stream\r\n"))
    stream_of = ask(TEXT, stream=True)
    cases = [
        ("/v1/responses", stream_of, {}),
        ("/v1/embeddings", stream_of, {}),
        (TEXT, stream_of, {"Content-Encoding": "x-own"}),
        (TEXT, ask(TEXT), {}),
        (TEXT, ask(TEXT, stream="true"), {}),
        (TEXT, ask(TEXT, stream=True, stream_options={"continuous_usage_stats": True}), {}),
        (TEXT, b'{"stream":true', {}),
        (TEXT, b"", {}),
    ]
    async with upstream.running(), relay_to(upstream.port) as rig:
        for path, body, fields in cases:
            async with rig.session.post(rig.url + path, data=body, headers=fields) as response:
                answered = await response.read()
            if response.status == 200:
                assert upstream.received[-1].body == body
                assert answered == USAGE, "nor is anything taken out"


async def test_a_large_prompt_is_asked_for_its_usage_too() -> None:
    upstream = await stream([TOKEN, USAGE, DONE])
    body = json.dumps({"model": "m", "prompt": "x" * 2 * INLINE_BYTES, "stream": True}).encode()
    async with (
        upstream.running(),
        relay_to(upstream.port) as rig,
        rig.session.post(rig.url + TEXT, data=body) as response,
    ):
        assert await response.read() == TOKEN + DONE
    assert upstream.received[0].body == body[:-1] + b',"stream_options":{"include_usage":true}}'


async def test_an_engine_that_answers_in_one_piece_is_passed_on() -> None:
    upstream = RawUpstream(
        answer(b'{"choices":[],"usage":{}}', fields=b"Content-Type: application/json\r\n")
    )
    async with (
        upstream.running(),
        relay_to(upstream.port) as rig,
        rig.session.post(rig.url + TEXT, data=ask(TEXT, stream=True)) as response,
    ):
        assert await response.read() == b'{"choices":[],"usage":{}}'


async def test_a_split_request_is_measured_and_its_client_sees_no_usage(tmp_path: Path) -> None:
    async with split_pool(tmp_path) as pool:
        body = {"model": "sim", "prompt": prompt("a"), "max_tokens": 4, "stream": True}
        status, got = await pool.post(body)
        assert (status, b'"usage"' in got) == (200, False)
        assert got.endswith(b"data: [DONE]\n\n")
        assert text_of(got) == text_of(await pool.alone(body))
        await pool.decode.counted({("answered", "split"): 1})
        assert b"stream_options" not in pool.prefill.bodies[0]
        await pool.log.until(lambda _: any(view.done for view in pool.log.views.values()))
    done = next(view.done[0] for view in pool.log.views.values() if view.done)
    assert (done.decision_id, done.completion_tokens) == ("d-1", 4)
