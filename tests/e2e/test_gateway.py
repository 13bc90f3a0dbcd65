"""Requests through a real Envoy, the picker, a sidecar and a simulated engine."""

import asyncio
import json
import random
import re
import urllib.error
import urllib.request
from collections import Counter
from typing import Any

import aiohttp
import pytest

from epp.sim.promises import client
from tests.e2e.conftest import Running


def text(words: int, rng: random.Random) -> str:
    return " ".join(f"{rng.getrandbits(40):x}" for _ in range(words))


@pytest.fixture
def rng() -> random.Random:
    return random.Random(random.SystemRandom().getrandbits(64))  # no test meets another's cache


def post(url: str, body: Any, **headers: str) -> tuple[int, dict[str, str], bytes]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(
        url, data, {"content-type": "application/json", **headers}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read()


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return bytes(answer.read())


def test_a_completion_and_a_chat_are_answered_by_an_engine(fleet: Running) -> None:
    completion = {"model": "sim", "prompt": "Once upon a time", "max_tokens": 16}
    status, headers, raw = post(f"{fleet.gateway}/v1/completions", completion)
    assert status == 200
    assert re.fullmatch(r"engine-[012]", headers["x-inference-pod"])
    assert json.loads(raw)["usage"]["completion_tokens"] == 16

    chat = {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
    status, _, raw = post(f"{fleet.gateway}/v1/chat/completions", chat)
    assert status == 200
    assert json.loads(raw)["choices"][0]["message"]["role"] == "assistant"


def test_a_request_without_a_body_passes(fleet: Running) -> None:
    assert json.loads(get(f"{fleet.gateway}/v1/models"))["data"][0]["id"] == "sim"


def test_a_large_prompt_passes_whole(fleet: Running, rng: random.Random) -> None:
    prompt = text(25_000, rng)  # 250 KB: many messages, and longer than the engine's context
    status, _, raw = post(f"{fleet.gateway}/v1/completions", {"model": "sim", "prompt": prompt})
    assert status == 400
    assert json.loads(raw)["error"]["message"]

    prompt = text(4_000, rng)
    body = {"model": "sim", "prompt": prompt, "max_tokens": 1}
    status, _, raw = post(f"{fleet.gateway}/v1/completions", body)
    assert status == 200
    assert json.loads(raw)["usage"]["prompt_tokens"] > 4_000


def test_a_broken_body_is_the_clients_fault(fleet: Running) -> None:
    status, _, _ = post(f"{fleet.gateway}/v1/completions", b'{"model": ')
    assert status == 400


async def test_a_repeated_prefix_lands_where_it_is_cached(
    fleet: Running, rng: random.Random
) -> None:
    async with aiohttp.ClientSession() as session:
        for _ in range(4):
            # Worth more than a queued request: a page that an engine's sidecar read while the last
            # one waited counts it for as long as a page does, though it has been answered since.
            head = text(1000, rng)
            first = await client.complete(session, fleet.gateway, head)
            for _ in range(3):
                again = await client.complete(session, fleet.gateway, f"{head} {text(3, rng)}")
                assert again.status == 200
                assert again.pod == first.pod
                assert again.cached_tokens >= first.prompt_tokens - 64


async def test_new_prompts_spread_over_the_engines(fleet: Running, rng: random.Random) -> None:
    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(client.complete(session, fleet.gateway, text(50, rng)))
            for _ in range(30)
        ]
        answers = [await task for task in tasks]
    assert {answer.status for answer in answers} == {200}
    assert len(Counter(answer.pod for answer in answers)) == 3


async def test_streamed_answers_end_with_done(fleet: Running, rng: random.Random) -> None:
    streams = [client.Stream() for _ in range(10)]
    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        for one in streams:
            group.create_task(
                client.stream(session, fleet.gateway, text(20, rng), max_tokens=20, into=one)
            )
    assert all(one.done and not one.fault for one in streams)
    assert all(len(one.arrivals) >= 20 for one in streams)
    assert all(one.arrivals[-1] - one.arrivals[0] > 0.05 for one in streams), "came all at once"


async def test_a_client_cannot_choose_the_endpoint(fleet: Running, rng: random.Random) -> None:
    forged = {"x-gateway-destination-endpoint": "127.0.0.1:1", "x-epp-decision-id": "mine"}
    for _ in range(5):
        body = {"model": "sim", "prompt": text(5, rng), "max_tokens": 1}
        status, _, _ = post(f"{fleet.gateway}/v1/completions", body, **forged)
        assert status == 200


def test_the_last_decision_says_why(fleet: Running, rng: random.Random) -> None:
    head = text(100, rng)
    for tail in ("one", "two"):
        body = {"model": "sim", "prompt": f"{head} {tail}", "max_tokens": 1}
        status, headers, _ = post(f"{fleet.gateway}/v1/completions", body)
        assert status == 200
    decision = json.loads(get(f"{fleet.map['decisions']}?limit=1"))["decisions"][0]
    chosen = decision["chosen"][0]
    assert headers["x-inference-pod"] in chosen["endpoint"]
    best = next(row for row in decision["table"] if row["address"] == chosen["address"])
    assert best["match"]["tokens"] > 0
    assert decision["reasons"]


def test_the_metrics_count_what_was_decided(fleet: Running) -> None:
    def decided() -> float:
        page = get(fleet.map["metrics"]).decode()
        found = re.findall(r"^epp_decisions_total\{.*\} ([0-9.e+]+)$", page, re.MULTILINE)
        return sum(map(float, found))

    before = decided()
    for _ in range(3):
        post(f"{fleet.gateway}/v1/completions", {"model": "sim", "prompt": "x", "max_tokens": 1})
    assert decided() - before == 3
