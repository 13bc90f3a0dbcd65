"""The reference picker's hermetic cases, played on our picker: `hermetic.toml` says what they are.

Each is decided by our own default profile, and by the profile that the reference plays them with.
"""

import json
import tomllib
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from epp import app as composition
from epp import protocol
from epp._pb import extproc_pb2 as pb
from epp.config.serve import serve_settings
from epp.deciding import director_of
from epp.framework import EndpointId
from epp.picker import Picker
from epp.request.offload import Offload
from epp.request.transport import grpc as transport
from epp.state.endpoints import Member
from epp.state.metrics_page import parse_page
from tests.fakes import extproc_client
from tests.fakes.extproc_messages import (
    FDS,
    request_body,
    request_headers,
    response_body,
    response_headers,
    set_in,
    streamed,
)

FILE = tomllib.loads((Path(__file__).parent / "hermetic.toml").read_text())
CASES: list[dict[str, Any]] = FILE["case"]
LORA = 'vllm:lora_requests_info{{max_lora="{}",running_lora_adapters="{}"}} 1.7e9\n'


REFERENCE = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
  - type: queue-scorer
  - type: kv-cache-utilization-scorer
  - type: prefix-cache-scorer
  - type: lora-affinity-scorer
"""
"""Four scorers of equal weight, without our damping of small differences."""


@pytest.fixture(params=["ours", "reference"])
def config(request: pytest.FixtureRequest) -> str | None:
    return REFERENCE if request.param == "reference" else None


def new_picker(case: Mapping[str, Any], config: str | None, objectives: Path) -> Picker:
    """A picker that has just read the pages of the case's pods."""
    flags = {"endpoints_file": "unused", "tokenizer": "estimate", **case.get("flags", {})}
    flags |= {"config_text": config, "objectives_file": objectives}
    picker = Picker(serve_settings({"metrics_staleness_threshold_s": 3600.0, **flags}))
    now = composition.clock()
    members = [
        Member(
            id=EndpointId(picker.pool_id, f"pod-{number}", 8000),
            address=f"192.168.1.{number + 1}:8000",
            has_sidecar=False,
        )
        for number in range(len(case.get("pods", [])))
    ]
    picker.pool.replace(members, now)
    for member, pod in zip(members, case.get("pods", []), strict=True):
        picker.pool.scraped(member.id, parse_page(_page(pod)), now)
    return picker


def _page(pod: Mapping[str, Any]) -> bytes:
    text = (
        f"vllm:num_requests_waiting {pod['queue']}\nvllm:num_requests_running 0\n"
        f"vllm:kv_cache_usage_perc {pod['kv']}\n"
    )
    adapters = pod.get("adapters", [])
    return (text + (LORA.format(len(adapters), ",".join(adapters)) if adapters else "")).encode()


@asynccontextmanager
async def stream_to(picker: Picker) -> AsyncIterator[extproc_client.Call]:
    """One ext_proc stream to it over a socket."""
    async with AsyncExitStack() as stack:
        spawned: list[Any] = []
        director = director_of(
            picker,
            await stack.enter_async_context(aiohttp.ClientSession()),
            stack.enter_context(Offload()),
            spawned.append,  # estimates ask nobody
        )
        server = await stack.enter_async_context(
            transport.serve(director, host="127.0.0.1", port=0)
        )
        channel = await stack.enter_async_context(extproc_client.channel(server.port))
        yield extproc_client.call(channel)
        assert not spawned


def messages(case: Mapping[str, Any]) -> list[bytes]:
    """What the gateway says of the request."""
    request = case.get("request")
    if request is None:
        return []
    model, target = request.get("model", ""), request.get("target", "")
    objective = request.get("objective", model)
    headers = {
        ":method": request.get("method", "POST"),
        ":path": request.get("path", "/v1/completions"),
        "content-type": "application/json",
        "hi": "mom",
        protocol.REQUEST_ID: "test-request-id",
        protocol.OBJECTIVE[0]: objective,
        protocol.MODEL_REWRITE[0]: target,
    }
    named = [(name, value) for name, value in headers.items() if value]
    ends = request.get("headers_only", False)
    first = request_headers(named, end=ends, response_mode=FDS)
    if ends:
        return [first]
    pieces = request.get("body") or [llm_body(model, request["prompt"])]
    bodies = [request_body(piece.encode()) for piece in pieces[:-1]]
    last = request_body(pieces[-1].encode(), end=True, subset=request.get("subset"))
    return [first, *bodies, last]


def llm_body(model: str, prompt: str) -> str:
    fields = {"max_tokens": 100, "model": model, "prompt": prompt, "temperature": 0}
    return json.dumps(fields, separators=(",", ":"))


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
async def test_a_hermetic_case_of_the_reference(
    config: str | None, case: dict[str, Any], tmp_path: Path
) -> None:
    objectives = tmp_path / "objectives.yaml"
    objectives.write_text(FILE["objectives"])
    picker, expect = new_picker(case, config, objectives), case["expect"]
    async with stream_to(picker) as call:
        if "request" in case:
            await call.send(*messages(case))
            if "status" in expect:
                _check_refusal(await call.replies(1), expect)
            else:
                await _check_route(call, case)
        if "answer" in case:
            await _check_echo(call, case)
    if "metrics" in expect:
        picker.metrics.refresh(composition.clock())
        lines = picker.metrics.text().decode().splitlines()
        for line in expect["metrics"]:
            assert line in lines


async def _check_route(call: extproc_client.Call, case: Mapping[str, Any]) -> None:
    """Exactly one reply with the destination, then the body in one piece."""
    request, expect = case["request"], case["expect"]
    has_body = not request.get("headers_only")
    replies = await call.replies(2 if has_body else 1)
    reply = replies[0]
    mutation = reply.request_headers.response.header_mutation
    assert not reply.request_headers.response.clear_route_cache
    headers = set_in(mutation)
    assert headers[protocol.DESTINATION] == expect["endpoint"]
    assert not {"hi", "content-length", protocol.REQUEST_ID} & headers.keys()
    metadata = reply.dynamic_metadata[protocol.LB_NAMESPACE]
    assert metadata[protocol.DESTINATION] == expect["endpoint"]
    scores = metadata[protocol.DESTINATION_SCORES] if expect.get("scores") else None
    assert sorted(scores or []) == expect.get("scores", [])
    assert len(metadata) == (1 if scores is None else 2)
    if not has_body:
        return
    (piece,) = streamed(replies, "request_body")
    sent = "".join(request.get("body") or [llm_body(request["model"], request["prompt"])])
    wanted = expect.get("body") or llm_body(expect["model"], request["prompt"])
    assert (piece.body.decode(), piece.end_of_stream) == (wanted, True)
    if len(wanted) != len(sent):
        assert "content-length" in mutation.remove_headers


def _check_refusal(replies: list[pb.ProcessingResponse], expect: Mapping[str, Any]) -> None:
    (reply,) = replies
    answer = reply.immediate_response
    assert answer.status.code == expect["status"]
    message = json.loads(answer.body)["error"]["message"]
    assert message.startswith(f"inference error: {expect['code']} - ")
    assert expect.get("message", "") in message
    if "reason" in expect:
        assert set_in(answer.headers)[protocol.DROP_REASON] == expect["reason"]


async def _check_echo(call: extproc_client.Call, case: Mapping[str, Any]) -> None:
    answer = case["answer"]
    first = pb.ProcessingRequest.FromString(
        response_headers(more=[("content-type", answer["content_type"])])
    )
    first.protocol_config.CopyFrom(
        pb.ProtocolConfiguration(request_body_mode=FDS, response_body_mode=FDS)
    )
    await call.send(first.SerializeToString())
    (headers,) = await call.replies(1)
    assert set_in(headers.response_headers.response.header_mutation) == {}
    pieces = [piece.encode() for piece in answer["pieces"]]
    for number, piece in enumerate(pieces):
        await call.send(response_body(piece, end=number == len(pieces) - 1))
    replies = await call.replies(len(case["expect"]["echo"]))
    echoed = [
        (piece.body.decode(), piece.end_of_stream) for piece in streamed(replies, "response_body")
    ]
    wanted = case["expect"]["echo"]
    assert echoed == [(text, number == len(wanted) - 1) for number, text in enumerate(wanted)]


def test_each_case_stands_once_and_each_difference_has_its_reason() -> None:
    names = [case["name"] for case in CASES]
    assert len(set(names)) == len(names)
    differences = [case["differs"] for case in CASES if "differs" in case]
    assert all(set(each) == {"reference", "because"} for each in differences)
    assert all(set(e) == {"about", "reference", "ours", "because"} for e in FILE["everywhere"])
