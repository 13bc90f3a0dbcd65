"""Images are encoded by other pods, and then the prompt is computed wherever it is to be.

Simulated engines count what they encode themselves, and what they have from others.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from epp.bodies.sharing import Api
from epp.protocol import ENCODERS
from epp.sim.serving.embeddings import Embeddings
from sidecar.encoding.stage import MAX_ANSWER, MAX_AT_ONCE
from tests.fakes.split_pool import CHAT, SplitPool, split_pool, text_of
from tests.fakes.upstreams import Conversation, RawUpstream, answer
from tests.fakes.waiting import until

pytestmark = pytest.mark.usefixtures("each_relay")

JSON = b"Content-Type: application/json\r\n"
ENCODED = 2
"""Stations that encode, before the one that prefills and the one that decodes."""


def image(name: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{name}"}}


def chat(*names: str, **more: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": "what is this?"}, *map(image, names)]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 6, **more}


ASKS: dict[Api, dict[str, Any]] = {
    Api.CHAT: chat("A", "B"),
    Api.MESSAGES: {
        "messages": [
            {
                "role": "user",
                "content": [{"type": "image", "source": {"data": name}} for name in "AB"],
            }
        ],
        "max_tokens": 6,
    },
    Api.RESPONSES: {
        "input": [
            {
                "role": "user",
                "content": [{"type": "input_image", "image_url": name} for name in "AB"],
            }
        ],
        "max_output_tokens": 6,
    },
}


@asynccontextmanager
async def pool_of(
    directory: Path, upstreams: dict[int, RawUpstream] | None = None, **settings: Any
) -> AsyncIterator[SplitPool]:
    engines: dict[str, Any] = {"handshake_s": 30.0, "ec_role": "both"}
    if settings.setdefault("ec_connector", "ec-nixl") == "ec-example":
        engines["ec_storage"] = directory / "embeddings"
        engines["ec_storage"].mkdir()
    async with split_pool(
        directory, prefills=3, engines=engines, upstreams=upstreams, **settings
    ) as pool:
        yield pool


async def post(
    pool: SplitPool, body: Any, path: str = CHAT, *, split: bool = True
) -> tuple[int, bytes]:
    encoders = ",".join(one.address for one in pool.stations[:ENCODED])
    targets = pool.stations[ENCODED].address if split else ""
    return await pool.post(body, path, targets=targets, **{ENCODERS: encoders})


def embeddings(pool: SplitPool) -> Sequence[Embeddings]:
    return [one.sim.embeddings for one in pool.stations]


@pytest.mark.parametrize("connector", ["ec-nixl", "ec-example"])
@pytest.mark.parametrize("split", [True, False], ids=["split", "alone"])
async def test_whoever_computes_the_prompt_has_the_embeddings_from_the_encoders(
    connector: str, split: bool, tmp_path: Path
) -> None:
    async with pool_of(tmp_path, ec_connector=connector) as pool:
        for api, body in ASKS.items():
            status, got = await post(pool, body, api, split=split)
            assert (status, text_of(got)) == (200, text_of(await pool.alone(body, api)))
        made = embeddings(pool)
        assert [one.encoded for one in made] == [3, 3, 0, 0]
        assert made[ENCODED if split else -1].received == 6
        assert pool.decode.metric("encode_total", outcome="encoded") == 3
        assert pool.decode.metric("encode_legs_total", outcome="encoded") == 6


async def test_the_encoders_have_their_turns_and_equal_items_are_one(tmp_path: Path) -> None:
    async with pool_of(tmp_path) as pool:
        assert (await post(pool, chat("A", "B", "A", "C", "B")))[0] == 200
        asked = [len(one.bodies) for one in pool.stations[:ENCODED]]
        assert sorted(asked) == [1, 2]
        (leg,) = pool.stations[1].bodies
        assert json.loads(leg) == {
            "messages": [{"role": "user", "content": [image("B")]}],
            "max_tokens": 1,
            "max_completion_tokens": 1,
            "stream": False,
        }


async def test_an_item_that_one_encoder_fails_is_the_next_ones(tmp_path: Path) -> None:
    async with pool_of(tmp_path) as pool:
        pool.stations[0].fault(status=503)
        assert (await post(pool, chat("A")))[0] == 200
        assert [one.encoded for one in embeddings(pool)] == [0, 1, 0, 0]
        assert pool.decode.metric("encode_total", outcome="encoded") == 1
        assert pool.decode.metric("encode_legs_total", outcome="status") == 1


async def test_what_nobody_encodes_is_encoded_with_the_prompt_and_counted(tmp_path: Path) -> None:
    async with pool_of(tmp_path) as pool:
        for one in pool.stations[:ENCODED]:
            one.fault(status=503)
        body = chat("A")
        status, got = await post(pool, body)
        assert (status, text_of(got)) == (200, text_of(await pool.alone(body, CHAT)))
        assert [one.encoded for one in embeddings(pool)] == [0, 0, 1, 0]
        assert pool.decode.metric("encode_total", outcome="failed") == 1


async def test_what_some_encode_is_used_though_others_failed(tmp_path: Path) -> None:
    async with pool_of(tmp_path, encode_timeout_s=1.0) as pool:
        pool.stations[1].fault(hang=True)
        assert (await post(pool, chat("A", "B")))[0] == 200
        assert [one.encoded for one in embeddings(pool)] == [1, 0, 1, 0]
        assert pool.decode.metric("encode_total", outcome="partly") == 1
        assert pool.decode.metric("encode_legs_total", outcome="timeout") == 1


@pytest.mark.parametrize(
    ("said", "expected", "outcome"), [(400, 400, "passed"), (503, 502, "refused")]
)
async def test_policy_may_forbid_to_encode_with_the_prompt(
    said: int, expected: int, outcome: str, tmp_path: Path
) -> None:
    error = b'{"error":{"message":"no image","code":%d}}' % said
    encoder = RawUpstream(answer(error, status=b"%d No" % said, fields=JSON))
    other = RawUpstream(answer(error, status=b"%d No" % said, fields=JSON))
    async with pool_of(tmp_path, {0: encoder, 1: other}, on_encode_failure="fail") as pool:
        status, got = await post(pool, chat("A"))
        assert status == expected
        assert (got == error) == (outcome == "passed")
        assert pool.stations[ENCODED].bodies == pool.decode.bodies == []
        assert pool.decode.metric("encode_total", outcome=outcome) == 1


@pytest.mark.parametrize(
    ("settings", "body", "reason"),
    [
        ({"ec_connector": None}, chat("A"), "ec-off"),
        ({}, chat(), "no-media"),
        ({}, b"not json", "not-json"),
    ],
)
async def test_where_nothing_is_encoded_elsewhere_the_reason_is_counted(
    settings: dict[str, Any], body: Any, reason: str, tmp_path: Path
) -> None:
    async with pool_of(tmp_path, **settings) as pool:
        await post(pool, body, split=False)
        assert all(one.bodies == [] for one in pool.stations[:ENCODED])
        assert pool.decode.metric("encode_total", outcome=reason) == 1


@pytest.mark.parametrize("size", [MAX_ANSWER, MAX_ANSWER + 1])
async def test_an_encoders_answer_is_read_up_to_its_limit(size: int, tmp_path: Path) -> None:
    said = b"{}".ljust(size)
    encoders = {number: RawUpstream(answer(said, fields=JSON)) for number in range(ENCODED)}
    async with pool_of(tmp_path, encoders) as pool:
        assert (await post(pool, chat("A"), split=False))[0] == 200
        outcome = "encoded" if size == MAX_ANSWER else "failed"
        assert pool.decode.metric("encode_total", outcome=outcome) == 1


async def test_a_client_that_leaves_ends_all_that_encode_for_it(tmp_path: Path) -> None:
    waiting = 0

    async def hang(talk: Conversation) -> None:
        nonlocal waiting
        if not talk.request.line.startswith(b"POST"):
            return
        waiting += 1
        try:
            await talk.reader.read()  # until the other side has gone
        finally:
            waiting -= 1

    async with pool_of(tmp_path, {0: RawUpstream(hang), 1: RawUpstream(hang)}) as pool:
        async with asyncio.TaskGroup() as tg:
            leaving = tg.create_task(post(pool, chat("A", "B", "C")))
            await until(lambda: waiting == 3)
            leaving.cancel()
        await until(lambda: not waiting)
        await until(lambda: pool.decode.metric("encode_total", outcome="client-gone") == 1)
        assert pool.stations[ENCODED].bodies == pool.decode.bodies == []


async def test_only_so_many_legs_of_a_request_run_at_once(tmp_path: Path) -> None:
    running, gate = 0, asyncio.Event()

    async def held(talk: Conversation) -> None:
        nonlocal running
        if talk.request.line.startswith(b"POST"):  # no scrape
            running += 1
            await gate.wait()
            running -= 1
        await answer(b"{}", fields=JSON)(talk)

    names = [f"i{number}" for number in range(2 * MAX_AT_ONCE)]
    async with pool_of(tmp_path, {0: RawUpstream(held), 1: RawUpstream(held)}) as pool:
        async with asyncio.TaskGroup() as tg:
            asking = tg.create_task(post(pool, chat(*names), split=False))
            await until(lambda: running == MAX_AT_ONCE)
            await asyncio.sleep(0.05)
            assert running == MAX_AT_ONCE
            gate.set()
        assert asking.result()[0] == 200
        assert pool.decode.metric("encode_legs_total", outcome="encoded") == len(names)


async def test_a_sidecar_that_encodes_nothing_takes_no_such_leg(tmp_path: Path) -> None:
    async with pool_of(tmp_path) as pool:
        for one in pool.stations[:ENCODED]:
            one.sidecar.door.encodes = False
        assert (await post(pool, chat("A")))[0] == 200
        assert all(one.bodies == [] for one in pool.stations[:ENCODED])
        refused = pool.stations[0].metric("legs_refused_total", reason="params-not-single")
        assert refused == 1


async def test_embeddings_that_would_be_looked_for_at_home_are_left_out(tmp_path: Path) -> None:
    """The encoder is reached at another address of this machine, which stands for another one."""
    told = b'{"ec_transfer_params":{"h":{"peer_host":"127.0.0.1","peer_port":1}}}'
    encoder = RawUpstream(answer(told, fields=JSON))
    async with pool_of(tmp_path, {0: encoder}, host="0.0.0.0") as pool:
        entries = json.loads(pool.file.read_text())["endpoints"]
        entries[0]["address"] = "127.0.0.2"
        pool.file.write_text(json.dumps({"endpoints": entries}))
        await until(lambda: pool.decode.sidecar.guard.is_member_host("127.0.0.2"))
        named = {ENCODERS: f"127.0.0.2:{pool.stations[0].sidecar.port}"}
        assert (await pool.post(chat("A"), CHAT, targets="", **named))[0] == 200
        assert len(pool.stations[0].bodies) == 1
        assert pool.decode.metric("encode_misaddressed_total") == 1
        assert b"ec_transfer_params" not in pool.decode.bodies[-1]
