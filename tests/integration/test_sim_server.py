"""The simulated engine over real HTTP and real ZMQ."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from epp.errors import LocalError
from epp.sim.kv import AllBlocksCleared, BlockStored
from epp.sim.serving.server import EngineServer
from epp.sim.tokenizer import decode, encode
from epp.state.replaying import fetch
from tests.fakes.cache_model import CacheModel
from tests.fakes.engines import EventTap, eventually, quick_settings, running_engine
from tests.timing import scaled

FIXTURE = Path(__file__).parent.parent / "data" / "kv_events" / "vllm_0.32.0.json"
PROMPT = "The prefill worker computes the prompt and the decode worker pulls the blocks. " * 4


@pytest.fixture
async def engine() -> AsyncIterator[EngineServer]:
    async with running_engine() as server:
        yield server


@pytest.fixture
async def http(engine: EngineServer) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(engine.url) as session:
        yield session


async def post(http: aiohttp.ClientSession, path: str, body: Any) -> tuple[int, Any]:
    async with http.post(path, json=body) as response:
        return response.status, await response.json()


async def complete(http: aiohttp.ClientSession, **body: Any) -> Any:
    status, answer = await post(http, "/v1/completions", {"prompt": PROMPT, **body})
    assert status == 200, answer
    return answer


async def until_idle(engine: EngineServer) -> None:
    core = engine.driver.engine
    await eventually(lambda: not core.running and not core.waiting)


async def test_a_second_completion_finds_the_prompt_of_the_first(
    http: aiohttp.ClientSession,
) -> None:
    first = await complete(http, max_tokens=5)
    second = await complete(http, max_tokens=5)
    tokens = len(encode(PROMPT))
    assert first["usage"] == {
        "prompt_tokens": tokens,
        "total_tokens": tokens + 5,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == (tokens - 1) // 16 * 16
    assert first["choices"][0]["text"] == second["choices"][0]["text"]
    assert first["choices"][0]["finish_reason"] == "length"


async def test_a_stream_says_the_same_as_the_whole_answer(http: aiohttp.ClientSession) -> None:
    whole = await complete(http, max_tokens=6)
    body = {
        "prompt": PROMPT,
        "max_tokens": 6,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with http.post("/v1/completions", json=body) as response:
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        raw = await response.read()
    *events, end = raw.split(b"\n\n")
    assert end == b""
    assert events[-1] == b"data: [DONE]"
    assert all(event.startswith(b"data: {") for event in events[:-1])
    pieces = [json.loads(event.removeprefix(b"data: ")) for event in events[:-1]]
    assert len(pieces) == 7
    text = "".join(piece["choices"][0]["text"] for piece in pieces[:-1])
    assert text == whole["choices"][0]["text"]
    reasons = [piece["choices"][0]["finish_reason"] for piece in pieces[:-1]]
    assert reasons == [None] * 5 + ["length"]
    assert pieces[-1]["choices"] == []
    assert pieces[-1]["usage"]["completion_tokens"] == 6
    assert pieces[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


async def test_a_chat_streams_its_role_first_and_ends_by_itself(
    http: aiohttp.ClientSession,
) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
    async with http.post("/v1/chat/completions", json=body) as response:
        events = (await response.text()).split("\n\n")
    pieces = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    choices = [piece["choices"][0] for piece in pieces]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert choices[-1]["finish_reason"] == "stop"
    del body["stream"]
    status, whole = await post(http, "/v1/chat/completions", body)
    assert status == 200
    text = "".join(choice["delta"]["content"] for choice in choices)
    assert whole["choices"][0]["message"]["content"] == text


async def test_several_prompts_and_choices_are_answered_in_one_response(
    http: aiohttp.ClientSession,
) -> None:
    answer = await complete(http, prompt=["one", "two"], n=2, max_tokens=3)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert len({choice["text"] for choice in answer["choices"]}) == 4


async def test_engines_with_equal_seeds_answer_equally(http: aiohttp.ClientSession) -> None:
    async with (
        running_engine(hash_seed=9) as other,
        aiohttp.ClientSession(other.url) as session,
    ):
        answers = [await complete(one, max_tokens=8) for one in (http, session)]
    assert answers[0]["choices"] == answers[1]["choices"]


async def test_headers_of_a_stream_come_before_the_first_token() -> None:
    async with running_engine(decode_step_s=scaled(0.5)) as engine:
        body = {"prompt": "a", "max_tokens": 1, "stream": True}
        async with (
            aiohttp.ClientSession(engine.url) as http,
            http.post("/v1/completions", json=body) as response,
        ):
            assert response.status == 200
            assert engine.driver.engine.counters.generation_tokens == 0
            await response.read()


async def test_every_answer_says_who_served(
    engine: EngineServer, http: aiohttp.ClientSession
) -> None:
    async with http.get("/health") as response:
        assert response.status == 200
        assert response.headers["x-inference-pod"] == "engine"
        assert response.headers["x-inference-port"] == str(engine.port)
    async with http.post("/v1/completions", data=b"{") as response:
        assert response.headers["x-inference-pod"] == "engine"


async def test_errors_have_the_form_of_the_api(http: aiohttp.ClientSession) -> None:
    async with http.post("/v1/completions", data=b"{") as response:
        assert response.status == 400
        assert (await response.json())["error"]["type"] == "BadRequestError"
    status, body = await post(http, "/v1/completions", {"prompt": "a", "model": "nobody"})
    assert (status, body["error"]["type"]) == (404, "NotFoundError")
    status, body = await post(http, "/v1/completions", {"prompt": "a", "max_tokens": 99_999})
    assert (status, body["error"]["code"]) == (400, 400)
    async with http.get("/nowhere") as response:
        assert (response.status, await response.json()) == (404, {"detail": "Not Found"})
    async with http.get("/v1/completions") as response:
        assert response.status == 405


async def test_a_body_may_be_this_long_and_no_longer() -> None:
    async with (
        running_engine(max_body_bytes=2048) as engine,
        aiohttp.ClientSession(engine.url) as http,
    ):
        for length, expected in ((2048, 200), (2049, 413)):
            body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
            async with http.post("/v1/completions", data=body.ljust(length)) as response:
                assert response.status == expected
                answer = await response.json()
        assert answer["error"]["code"] == 413


async def test_a_full_queue_is_a_503_and_leaves_nothing_behind() -> None:
    async with (
        running_engine(max_waiting=2, max_num_seqs=1) as engine,
        aiohttp.ClientSession(engine.url) as http,
    ):
        status, body = await post(
            http, "/v1/completions", {"prompt": ["a", "b", "c"], "max_tokens": 1}
        )
        assert (status, body["error"]["type"]) == (503, "ServiceUnavailableError")
        assert engine.driver.engine.waiting == 0
        await complete(http, prompt=["a", "b"], max_tokens=1)


async def test_small_routes_answer_as_vllm_does(
    engine: EngineServer, http: aiohttp.ClientSession
) -> None:
    async with http.get("/v1/models") as response:
        (card,) = (await response.json())["data"]
        assert (card["id"], card["max_model_len"]) == ("sim", 16_384)
    async with http.get("/version") as response:
        assert (await response.json())["version"].startswith("0.32.0")
    async with http.get("/metrics") as response:
        assert response.headers["Content-Type"].startswith("text/plain")
        assert "vllm:num_requests_running{" in await response.text()
    status, body = await post(http, "/tokenize", {"prompt": PROMPT})
    assert (status, body["tokens"]) == (200, encode(PROMPT))


async def test_tokens_of_an_answer_can_be_sent_back(http: aiohttp.ClientSession) -> None:
    answer = await complete(http, max_tokens=40, return_token_ids=True)
    choice = answer["choices"][0]
    assert decode(choice["token_ids"]) == choice["text"]
    again = await complete(http, prompt=PROMPT + choice["text"] + " more", max_tokens=1)
    tokens = len(encode(PROMPT)) + 40
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == (tokens - 1) // 16 * 16


async def test_a_client_that_leaves_frees_its_blocks(engine: EngineServer) -> None:
    body = {"prompt": PROMPT, "max_tokens": 16_000, "stream": True}
    async with (
        aiohttp.ClientSession(engine.url) as http,
        http.post("/v1/completions", json=body) as response,
    ):
        await response.content.readuntil(b"\n\n")
        assert engine.driver.engine.running == 1
        response.close()
        await until_idle(engine)
        assert engine.driver.engine.pool.used == 0
        assert engine.traffic.left == 1


async def test_a_client_that_leaves_before_the_answer_frees_its_blocks(
    engine: EngineServer, http: aiohttp.ClientSession
) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(complete(http, max_tokens=16_000), 0.2)
    await until_idle(engine)


async def test_forty_streams_at_once_all_end(http: aiohttp.ClientSession) -> None:
    async def one(number: int) -> bytes:
        body = {"prompt": f"{number} {PROMPT}", "max_tokens": 20, "stream": True}
        async with http.post("/v1/completions", json=body) as response:
            return await response.read()

    answers = await asyncio.gather(*(one(number) for number in range(40)))
    assert all(answer.endswith(b"data: [DONE]\n\n") for answer in answers)
    assert {answer.count(b"\n\n") for answer in answers} == {21}


async def test_events_on_the_wire_describe_the_cache(engine: EngineServer) -> None:
    assert engine.kv_events_endpoint is not None
    model = CacheModel()
    async with (
        EventTap(engine.kv_events_endpoint) as tap,
        aiohttp.ClientSession(engine.url) as http,
    ):
        for prompt in (PROMPT, PROMPT + "Another tail.", "Something else. " * 30):
            await complete(http, prompt=prompt, max_tokens=20)
        messages = await tap.waiting()
        assert [sequence for sequence, _ in messages] == list(range(len(messages)))
        for _, message in messages:
            assert message.data_parallel_rank == 0
            model.apply(message.events)
        assert model.contents() == engine.driver.engine.pool.contents()
        assert model.cached_tokens(encode(PROMPT), 16) == len(encode(PROMPT)) // 16 * 16

        _, body = await post(http, "/admin/evict", {"all": True})
        _, message = await tap.next()
        model.apply(message.events)
        assert body["evicted"] == len(message.events)
        assert model.contents() == {}

        await complete(http)
        await tap.waiting()
        assert await post(http, "/reset_prefix_cache", None) == (200, {"reset": True})
        _, message = await tap.next()
        assert message.events == [AllBlocksCleared()]


async def test_messages_have_the_fields_of_recorded_ones(engine: EngineServer) -> None:
    recorded = {
        event["type"]: list(event)
        for message in json.loads(FIXTURE.read_text())
        for event in message["decoded"][1]
    }
    assert engine.kv_events_endpoint is not None
    seen: dict[str, list[str]] = {}
    async with (
        EventTap(engine.kv_events_endpoint) as tap,
        aiohttp.ClientSession(engine.url) as http,
    ):
        await complete(http, cache_salt="tenant-a")
        topic, sequence, payload = await tap.frames()
        assert topic == f"kv@127.0.0.1:{engine.port}@sim".encode()
        assert sequence == bytes(8)
        ts, events, rank = msgspec.msgpack.decode(payload)
        assert (type(ts), rank) == (float, 0)
        assert events[0]["extra_keys"][:2] == [["tenant-a"], None]
        await tap.waiting()
        for path, body in (("/admin/evict", {"all": True}), ("/reset_prefix_cache", None)):
            await post(http, path, body)
            more = msgspec.msgpack.decode((await tap.frames())[2])[1]
            seen |= {event["type"]: list(event) for event in (*events, *more)}
    assert seen == recorded


async def test_lost_batches_leave_a_gap_in_the_sequence(engine: EngineServer) -> None:
    assert engine.kv_events_endpoint is not None
    async with (
        EventTap(engine.kv_events_endpoint) as tap,
        aiohttp.ClientSession(engine.url) as http,
    ):
        await post(http, "/admin/faults", {"drop_event_batches": 1})
        await complete(http, max_tokens=1)
        await complete(http, prompt="Something else. " * 30, max_tokens=1)
        assert (await tap.next())[0] == 1


async def test_a_restart_forgets_everything_and_counts_from_zero(engine: EngineServer) -> None:
    assert engine.kv_events_endpoint is not None
    async with (
        EventTap(engine.kv_events_endpoint) as tap,
        aiohttp.ClientSession(engine.url) as http,
    ):
        await complete(http, max_tokens=40)
        assert [number for number, _ in await tap.waiting()][:2] == [0, 1]
        body = {"prompt": PROMPT, "max_tokens": 16_000, "stream": True}
        async with http.post("/v1/completions", json=body) as running:
            await running.content.readuntil(b"\n\n")
            before = engine.start_ns
            status, state = await post(http, "/admin/restart", None)
            assert (status, state["lives"], state["blocks"]["free"]) == (200, 2, 2048)
            assert state["start_ms"] > before // 1_000_000
            with pytest.raises(aiohttp.ClientPayloadError):
                await running.read()
        await tap.waiting()
        answer = await complete(http, max_tokens=1)
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        sequence, message = await tap.next()
        assert sequence == 0
        assert isinstance(message.events[0], BlockStored)


async def test_two_restarts_at_once_have_different_starts() -> None:
    async with EngineServer(quick_settings(), wall_ns=lambda: 5_000_000) as engine:
        starts = [engine.start_ns // 1_000_000]
        for _ in range(2):
            engine.restart()
            starts.append(engine.start_ns // 1_000_000)
    assert starts == [5, 6, 7]


async def test_a_port_in_use_is_said_so(engine: EngineServer) -> None:
    with pytest.raises(LocalError, match=f"cannot listen on 127.0.0.1:{engine.port}"):
        async with running_engine(port=engine.port):
            pass
    with pytest.raises(LocalError, match="cannot publish KV events"):
        async with running_engine(kv_events=engine.kv_events_endpoint):
            pass


async def test_an_engine_may_connect_to_a_subscriber_that_binds() -> None:
    async with running_engine(kv_events="tcp://127.0.0.1:9", kv_events_bind=False) as engine:
        assert engine.kv_events_endpoint == "tcp://127.0.0.1:9"
    async with running_engine(kv_events=None) as engine:
        assert engine.kv_events_endpoint is None


async def test_an_error_inside_the_block_comes_out_as_it_is() -> None:
    with pytest.raises(KeyError, match="mine"):
        async with running_engine():
            raise KeyError("mine")


async def test_what_was_lost_on_the_wire_can_be_asked_for() -> None:
    async with (
        running_engine(kv_replay="tcp://127.0.0.1:0") as engine,
        aiohttp.ClientSession(engine.url) as http,
    ):
        assert engine.kv_replay_endpoint is not None
        await post(http, "/admin/faults", {"drop_event_batches": 1})
        for prompt in ("Lost. " * 40, "Told. " * 40):
            await complete(http, prompt=prompt, max_tokens=1)
        last = engine.state()["next_event_sequence"]
        assert isinstance(last, int)
        assert last > 1
        assert [one.seq async for one in fetch(engine.kv_replay_endpoint, 0)] == [*range(last)]
        assert [one.seq async for one in fetch(engine.kv_replay_endpoint, last - 1)] == [last - 1]
        engine.restart()
        assert [one async for one in fetch(engine.kv_replay_endpoint, 0)] == []
