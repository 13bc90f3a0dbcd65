"""Engines that must not be paired (D11): another version, model, block size or data type."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from epp.sim.answers import models_body
from epp.sim.serving.server import VERSION
from sidecar.http.client import Call, Head
from sidecar.trust.pairs import KEPT_S, UNKNOWN_S, Pairs
from tests.fakes.handoffs import A, B, C
from tests.fakes.split_pool import prompt, split_pool, text_of
from tests.fakes.upstreams import Conversation, RawUpstream, answer

JSON = b"Content-Type: application/json\r\n"
CACHE = 'vllm:cache_config_info{block_size="%s",cache_dtype="%s",engine="0"} 1.0\n'


def ask(name: str) -> dict[str, Any]:
    return {"prompt": prompt(name), "max_tokens": 4}


def engine(
    version: str = VERSION, model: str = "sim", block: str = "16", dtype: str = "auto"
) -> Any:
    """An engine of these traits, which would answer any prompt."""

    async def script(talk: Conversation) -> None:
        pages = {
            b"/version": json.dumps({"version": version}).encode(),
            b"/v1/models": models_body((model,), 0, 4096),
            b"/metrics": (CACHE % (block, dtype)).encode(),
        }
        path = talk.request.line.split(b" ")[1]
        await answer(pages.get(path, b"{}"), fields=JSON)(talk)

    return script


@pytest.mark.usefixtures("each_relay")
@pytest.mark.parametrize(
    ("traits", "reason"),
    [
        ({"version": "0.31.0"}, "pair-version"),
        ({"model": "another"}, "pair-model"),
        ({"block": "128"}, "pair-block-size"),
        ({"dtype": "fp8"}, "pair-dtype"),
    ],
)
async def test_D11_no_prompt_goes_to_an_engine_that_cannot_be_pulled_from(
    traits: dict[str, str], reason: str, tmp_path: Path
) -> None:
    """Protected by `traits.difference`, asked by `Splitter._compared`. Red when nobody asks."""
    upstreams = {0: RawUpstream(engine(**traits))}
    async with split_pool(tmp_path, upstreams=upstreams, compare_pairs=True) as pool:
        status, got = await pool.post(ask("p"))
        assert (status, text_of(got)) == (200, text_of(await pool.alone(ask("p"))))
        assert pool.prefill.bodies == []
        await pool.decode.counted({("whole", reason): 1})
        assert pool.decode.metric("prefill_targets_refused_total", reason=reason) == 1


@pytest.mark.usefixtures("each_relay")
async def test_D11_equal_engines_are_asked_once(tmp_path: Path) -> None:
    """Protected by `Pairs`, which remembers. Red when each request asks."""
    async with split_pool(tmp_path, compare_pairs=True) as pool:
        for number in range(3):
            assert (await pool.post(ask(f"e{number}")))[0] == 200
        await pool.decode.counted({("answered", "split"): 3})
        assert pool.prefill.sim.traffic.by_route()["/version"] == {"200": 1}
        assert pool.decode.metric("pairs_known") == 1


async def test_D11_an_engine_that_failed_is_compared_again(tmp_path: Path) -> None:
    """Protected by `Pairs.forget`, told by `Handover._prefill_failed`. Red when it is not told: the
    pod came back with another version."""
    async with split_pool(tmp_path, compare_pairs=True) as pool:
        assert (await pool.post(ask("first")))[0] == 200
        pool.prefill.fault(status=500, status_count=1)
        assert (await pool.post(ask("second")))[0] == 200
        assert (await pool.post(ask("third")))[0] == 200
        assert pool.prefill.sim.traffic.by_route()["/version"] == {"200": 2}


class Pages:
    """An upstream of engines whose versions are settable; `asked` counts."""

    repeats = 0

    def __init__(self) -> None:
        self.versions: dict[Any, str | None] = {}
        self.asked: Counter[Any] = Counter()
        self.gate = asyncio.Event()
        self.gate.set()

    async def send(self, call: Call) -> Any:
        return await self.send_to(None, call)

    async def send_to(self, target: Any, call: Call) -> Any:
        self.asked[target, call.target] += 1
        await self.gate.wait()
        return _Page(json.dumps({"version": self.versions.get(target, "1")}).encode())


class _Page:
    head = Head(200, "OK")

    def __init__(self, body: bytes) -> None:
        self.body = body

    async def next(self) -> bytes:
        body, self.body = self.body, b""
        return body

    def close(self) -> None:
        pass


def pairs(pages: Pages, now: list[float], **how: Any) -> Pairs:
    return Pairs(upstream=pages, page="/metrics", clock=lambda: now[0], **how)  # type: ignore[arg-type]


async def test_D11_requests_that_come_meanwhile_wait_for_one_answer() -> None:
    """Protected by the lock of each pod. Red when each asks for itself."""
    pages, now = Pages(), [0.0]
    pages.gate.clear()
    one = pairs(pages, now)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(20):
            tasks.create_task(one.differences([A]))
        await asyncio.sleep(0)
        pages.gate.set()
    assert pages.asked[A, "/version"] == pages.asked[None, "/version"] == 1


async def test_D11_a_difference_that_was_mended_is_noticed_soon() -> None:
    """Protected by `UNKNOWN_S` for differences. Red when they are kept as long as agreement."""
    pages, now = Pages(), [0.0]
    pages.versions[A] = "2"
    one = pairs(pages, now)
    assert await one.differences([A, B]) == ["pair-version", None]
    pages.versions[A] = "1"
    now[0] += UNKNOWN_S
    assert await one.differences([A, B]) == [None, None]
    pages.versions[A] = "2"
    now[0] += KEPT_S - 1
    assert await one.differences([A]) == [None]
    now[0] += 1
    assert await one.differences([A]) == ["pair-version"]


async def test_D11_an_engine_that_tells_nothing_is_not_refused_and_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Protected by the time limit in `Pairs._asked`. Red when a silent engine holds requests."""
    monkeypatch.setattr("sidecar.trust.pairs.ASK_S", 0.02)
    pages, now = Pages(), [0.0]
    pages.gate.clear()
    one = pairs(pages, now)
    async with asyncio.timeout(5):
        assert await one.differences([A]) == [None]
    pages.gate.set()
    pages.versions[A] = "2"
    now[0] += UNKNOWN_S
    assert await one.differences([A]) == ["pair-version"]


async def test_D11_only_so_many_pods_are_remembered() -> None:
    """Protected by `max_pods`. Red when every address that was ever named stays."""
    one = pairs(Pages(), [0.0], max_pods=2)
    await one.differences([A, B, C])
    assert len(one) == 2
