"""Every pair of body modes that a real Envoy accepts: prompts and answers arrive whole, routed."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import aiohttp
import pytest

from epp import protocol
from epp.bodies.usage import Usage
from epp.request.exchange import Arrival, ModelName, Outcome
from epp.sim.gateway.envoy import EnvoySettings
from tests.fakes.backend import raw_backend
from tests.fakes.director import RecordingProgress, route
from tests.fakes.picked_gateway import Rig, rig
from tests.fakes.waiting import until

NONE, STREAMED, BUFFERED, PARTIAL, DUPLEX = (
    "NONE",
    "STREAMED",
    "BUFFERED",
    "BUFFERED_PARTIAL",
    "FULL_DUPLEX_STREAMED",
)
PAIRS = list(product((NONE, STREAMED, BUFFERED, PARTIAL, DUPLEX), repeat=2))
PROMPT = json.dumps({"model": "chat", "stream": True, "prompt": "why? " * 60_000}).encode()
EVENTS = b"".join(
    b'data: {"id":"cmpl-1","model":"org/internal","choices":[{"text":" %d"}],"usage":%b}\n\n'
    % (number, b'{"prompt_tokens":7,"completion_tokens":200}' if number == 199 else b"null")
    for number in range(200)
)
EVENTS += b"data: [DONE]\n\n"
SHOWN = EVENTS.replace(b'"org/internal"', b'"chat"')
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n"


def _in_modes(request: str, response: str, *, trailers: str = "SEND") -> Callable[[str], str]:
    def edit(bootstrap: str) -> str:
        config = json.loads(bootstrap)
        chain = config["static_resources"]["listeners"][0]["filter_chains"][0]
        ext_proc = chain["filters"][0]["typed_config"]["http_filters"][0]["typed_config"]
        ext_proc["processing_mode"] = {
            "request_header_mode": "SEND",
            "request_body_mode": request,
            "request_trailer_mode": "SEND" if request == DUPLEX else trailers,
            "response_header_mode": "SEND",
            "response_body_mode": response,
            "response_trailer_mode": "SEND" if response == DUPLEX else trailers,
        }
        return json.dumps(config)

    return edit


def _without_retries(settings: EnvoySettings) -> EnvoySettings:
    """So that what a connection may buffer is the limit of BUFFERED modes: 1 MiB."""
    return replace(settings, retries=False)


async def _pieces(body: bytes, size: int = 50_000) -> AsyncIterator[bytes]:
    for at in range(0, len(body), size):
        yield body[at : at + size]


def _to(address: str, model: ModelName | None = None) -> Callable[[Arrival], Outcome]:
    return lambda _: replace(route(address), model=model)


def _chunked(body: bytes, size: int = 1_000) -> bytes:
    out = HEAD + b"transfer-encoding: chunked\r\n\r\n"
    for at in range(0, len(body), size):
        piece = body[at : at + size]
        out += b"%x\r\n%b\r\n" % (len(piece), piece)
    return out + b"0\r\n\r\n"


async def _told(here: Rig, index: int = -1) -> RecordingProgress:
    """The progress of a request whose stream has ended."""
    await until(lambda: here.picker.counts.live == 0)
    return here.director.progresses[index]


@pytest.mark.parametrize(("request_mode", "response_mode"), PAIRS)
async def test_a_long_prompt_and_a_streamed_answer_pass_whole(
    tmp_path: Path, request_mode: str, response_mode: str
) -> None:
    collected = request_mode in (BUFFERED, PARTIAL, DUPLEX)
    async with (
        raw_backend(_chunked(EVENTS)) as (address, seen),
        rig(
            tmp_path,
            more_endpoints=(address,),
            edit=_in_modes(request_mode, response_mode),
            settings=_without_retries,
        ) as here,
        aiohttp.ClientSession(here.gateway.url) as client,
    ):
        here.director.script = _to(address, ModelName("chat", "org/internal"))
        for declared in (True, False):
            data = PROMPT if declared else _pieces(PROMPT)
            async with client.post("/v1/completions", data=data) as response:
                assert response.status == 200
                assert await response.read() == (EVENTS if response_mode == NONE else SHOWN)
            arrival = here.director.arrivals[-1]
            assert arrival.body == (PROMPT if collected else b"")
            assert (arrival.has_body, arrival.body_hidden) == (collected, not collected)
            head = seen[-1].partition(b"\r\n\r\n")[0].lower()
            assert b"%b: %b" % (protocol.DESTINATION.encode(), address.encode()) in head
            events = (await _told(here)).events
            cost = ("usage", Usage(prompt_tokens=7, completion_tokens=200))
            assert events[0][:2] == ("headers", 200)
            assert (cost in events) == (response_mode != NONE)
            assert events[-1] == (("reset", True) if response_mode == NONE else ("finished",))
        assert [each.seen for each in here.backends] == [[], []]
        await _engines_answer_too(here)
        assert here.picker.counts.aborted == {}
        assert here.picker.counts.faults == 0
        assert here.picker.budget.used == 0
        assert await here.gateway.ext_proc("spurious_msgs_received") == 0
        assert await here.gateway.ext_proc("rejected_header_mutations") == 0


async def _engines_answer_too(here: Rig) -> None:
    """Bodies of the prompt's size both ways, and requests or answers without one."""
    here.director.script = here.to(1)
    engine = here.backends[1]
    async with aiohttp.ClientSession(here.gateway.url) as client:
        async with client.post("/echo", data=PROMPT) as response:
            assert await response.read() == PROMPT
            assert engine.seen[-1].body == PROMPT
        for method, path, status in (("GET", "/v1/models", 200), ("POST", "/empty", 204)):
            async with client.request(method, path) as response:
                assert response.status == status
    assert all(seen.values(protocol.DESTINATION) == [engine.address] for seen in engine.seen)
    assert here.backends[0].seen == []


@pytest.mark.parametrize("size", [3_000_000])
async def test_what_outgrows_the_gateways_buffer_is_routed_by_load_and_passes_whole(
    tmp_path: Path, size: int
) -> None:
    body = json.dumps({"model": "org/internal", "prompt": "x" * size}).encode()
    async with (
        rig(tmp_path, edit=_in_modes(PARTIAL, PARTIAL), settings=_without_retries) as here,
        aiohttp.ClientSession(here.gateway.url) as client,
    ):
        here.director.script = _to(here.backends[1].address, ModelName("chat", "org/internal"))
        async with client.post("/echo", data=_pieces(body)) as response:
            assert response.status == 200
            assert await response.read() == body
        assert here.director.arrivals[-1].body_hidden
        assert here.backends[1].seen[-1].body == body
        assert (await _told(here)).ends == [("reset", True)]
        assert await here.gateway.ext_proc("spurious_msgs_received") == 0


@pytest.mark.parametrize("mode", [STREAMED, BUFFERED, PARTIAL, DUPLEX])
async def test_a_renamed_answer_is_framed_right(tmp_path: Path, mode: str) -> None:
    answer = b'{"model":"org/internal","choices":[]}'
    head = HEAD.replace(b"text/event-stream", b"application/json")
    whole = head + b"content-length: %d\r\n\r\n" % len(answer) + answer
    async with (
        raw_backend(whole) as (address, _),
        rig(tmp_path, more_endpoints=(address,), edit=_in_modes(BUFFERED, mode)) as here,
        aiohttp.ClientSession(here.gateway.url) as client,
    ):
        for asked in ("chat", "a much longer name than the engine has", "org/INTERNAL"):
            here.director.script = _to(address, ModelName(asked, "org/internal"))
            async with client.post("/v1/completions", data=b"{}") as response:
                text = await response.read()
                assert json.loads(text) == {"model": asked, "choices": []}
                declared = response.headers.get("content-length", str(len(text)))
                assert declared == str(len(text))


async def test_pieces_that_do_not_wait_for_the_headers_reply_pass_too(tmp_path: Path) -> None:
    def eager(bootstrap: str) -> str:
        config = json.loads(_in_modes(STREAMED, STREAMED)(bootstrap))
        chain = config["static_resources"]["listeners"][0]["filter_chains"][0]
        ext_proc = chain["filters"][0]["typed_config"]["http_filters"][0]["typed_config"]
        ext_proc["send_body_without_waiting_for_header_response"] = True
        return json.dumps(config)

    async with (
        rig(tmp_path, edit=eager) as here,
        aiohttp.ClientSession(here.gateway.url) as client,
    ):
        arrived = asyncio.Event()

        async def late(_: Arrival) -> Outcome:
            await arrived.wait()
            return route(here.backends[1].address)

        async def slow() -> AsyncIterator[bytes]:
            async for piece in _pieces(PROMPT):
                yield piece
                await asyncio.sleep(0.01)
            arrived.set()

        here.director.script = late
        async with client.post("/echo", data=slow()) as response:
            assert await response.read() == PROMPT
        assert here.backends[1].seen[-1].body == PROMPT
        assert await here.gateway.ext_proc("spurious_msgs_received") == 0


async def test_scores_reach_the_gateway_and_only_our_own_headers_the_client(
    tmp_path: Path,
) -> None:
    def logged(bootstrap: str) -> str:
        key = f"{protocol.LB_NAMESPACE}:{protocol.DESTINATION_SCORES}"
        return bootstrap.replace('"time": ', f'"scores": "%DYNAMIC_METADATA({key})%", "time": ', 1)

    forged = b"%b: 203.0.113.9:1\r\n" % protocol.CONFORMANCE_SERVED.encode()
    forged += b"%b: 203.0.113.9:1\r\nx-kept: yes\r\n" % protocol.DESTINATION.encode()
    async with (
        raw_backend(HEAD + forged + b"content-length: 2\r\n\r\nok") as (address, _),
        rig(tmp_path, more_endpoints=(address,), edit=logged) as here,
        aiohttp.ClientSession(here.gateway.url) as client,
    ):
        progress = RecordingProgress(answer_headers=((protocol.CONFORMANCE_SERVED, address),))
        scores = ((address, 1.25), (here.backends[0].address, 0.0))
        here.director.script = lambda _: replace(route(address, progress=progress), scores=scores)
        async with client.post("/v1/completions", data=b"{}") as response:
            assert response.headers.getall(protocol.CONFORMANCE_SERVED) == [address]
            assert protocol.DESTINATION not in response.headers
            assert response.headers["x-kept"] == "yes"
        (line,) = await here.gateway.log_lines(1)
        assert line["scores"] == dict(scores)


@pytest.mark.parametrize(("request_mode", "response_mode"), [("GRPC", NONE), (NONE, "GRPC")])
async def test_a_mode_that_envoy_does_not_have_itself_is_refused_by_name(
    tmp_path: Path, request_mode: str, response_mode: str
) -> None:
    async with (
        rig(tmp_path, edit=_in_modes(request_mode, response_mode)) as here,
        aiohttp.ClientSession(here.gateway.url) as client,
    ):
        async with client.post("/v1/completions", data=PROMPT) as response:
            assert response.status >= 500
        assert [each.seen for each in here.backends] == [[], []]
        assert here.picker.counts.aborted == {"INVALID_ARGUMENT": 1}
        (line,) = await here.gateway.log_lines(1)
        assert "GRPC_is_not_supported:_use_FULL_DUPLEX_STREAMED" in line["details"]
