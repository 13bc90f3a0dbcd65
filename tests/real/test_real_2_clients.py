"""What clients can do to real engines: send parameters, leave at any moment. All in vain."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from epp.protocol import PREFILLER
from epp.sim.fleets.ports import HOST
from sidecar.transfer.legs import LEG_HEADER
from tests.real.conftest import DECODE, FREED_S, PREFILL, Ask, Real
from tests.real.stage import staged
from tests.timing import scaled

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="session")]

SPELLINGS = Path(__file__).parents[1] / "data" / "handoff" / "spellings.jsonl"
IN_SPELLINGS = '{"do_remote_prefill":true,"remote_block_ids":[[1]]}'
DRAIN_S = 30
"""How long a sidecar lets a decode leg go on for a client that has left."""
PRODUCER = {"do_remote_decode": True, "do_remote_prefill": False}
DEADLY: dict[str, object] = {
    "dies at once": {"do_remote_prefill": True},
    "hangs, then dies": {
        "do_remote_prefill": True,
        "remote_block_ids": [[1, 2]],
        "remote_engine_id": "none",
        "remote_host": HOST,
        "remote_port": 9,
    },
    "pins blocks for nobody": PRODUCER,
}


def spellings(params: object) -> list[tuple[str, str]]:
    """Every way to write parameters into a completion of one token, which is never split."""
    found = []
    start = '{"model":"tiny","max_tokens":1,"prompt":"hello there",'
    for line in SPELLINGS.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        body = row["body"].replace(IN_SPELLINGS, json.dumps(params))
        found.append((row["name"], body.replace("{", start, 1)))
    return found


@pytest.mark.parametrize("kind", DEADLY)
async def test_parameters_of_clients_reach_no_engine_in_any_spelling(real: Real, kind: str) -> None:
    before = [await real.counters(place) for place in (PREFILL, DECODE)]
    answered = 0
    for name, body in spellings(DEADLY[kind]):
        for door in (real.gateway, real.sidecar(PREFILL), real.sidecar(DECODE)):
            answer = await real.post(f"{door}/v1/completions", body.encode())
            assert answer.status < 500, (name, door, answer.raw)
            assert b"remote_block_ids" not in answer.raw
            answered += answer.status == 200
    assert answered >= 3 * 15  # most rows are requests that an engine serves
    await real.assert_alive()
    assert (await real.freed()).usage == 0
    for place, earlier in zip((PREFILL, DECODE), before, strict=True):
        now = await real.counters(place)
        assert (now.transfers, now.pulled_bytes) == (earlier.transfers, earlier.pulled_bytes)
        assert now.failed == earlier.failed
    assert (await real.ask(real.gateway, Ask("and afterwards"))).status == 200


async def test_headers_of_clients_steer_nothing(real: Real) -> None:
    before = await real.counters(DECODE)
    one = Ask("short", max_tokens=1)
    anywhere = {PREFILLER: f"{HOST}:9", LEG_HEADER: "v1;exp=9999999999;mac=" + "0" * 64}
    answer = await real.ask(real.gateway, one, anywhere)
    assert answer.status == 200  # Envoy has removed both
    for place in (PREFILL, DECODE):
        forged = await real.ask(real.sidecar(place), one, {LEG_HEADER: anywhere[LEG_HEADER]})
        assert forged.status == 421
        foreign = await real.ask(real.sidecar(place), Ask("longer"), {PREFILLER: f"{HOST}:9"})
        assert foreign.status == 200  # no member: not asked
    assert (await real.counters(DECODE)).transfers == before.transfers
    await real.assert_alive()


async def test_parameters_of_another_prompt_never_answer_a_client(
    real: Real, words: Callable[[int], str], tmp_path: Path
) -> None:
    """Real ones, before and after their one use: only the sidecar that got them may send them."""
    theirs, mine = Ask(words(60)), Ask(words(61))
    kept = await real.counters(PREFILL)
    [their_text, my_text] = await real.alone(theirs, mine)
    async with staged(real, tmp_path) as stage:
        body = json.dumps({**theirs.body, "max_tokens": 1, "kv_transfer_params": PRODUCER})
        status, answer = await stage.prefill(theirs.path, body.encode())
    assert status == 200
    params = json.loads(answer)["kv_transfer_params"]
    stolen = Ask(mine.prompt, more={"kv_transfer_params": params})
    for used in (False, True):
        for door in (real.gateway, real.sidecar(PREFILL), real.sidecar(DECODE)):
            assert (await real.ask(door, stolen)).text == my_text, (used, door)
        if not used:  # their one use, as the sidecar itself would do it
            before = await real.counters(DECODE)
            pull = Ask(theirs.prompt, more={"kv_transfer_params": params})
            assert (await real.ask(real.engine(DECODE), pull)).text == their_text
            now = await real.pulled(before, 1)
            blocks = params["remote_block_ids"][0]
            assert now.pulled_bytes - before.pulled_bytes == len(blocks) * real.block_bytes
    now = await real.freed()
    assert (now.expired, now.late) == (kept.expired, kept.late)


@asynccontextmanager
async def leaving(real: Real, base: str, ask: Ask, headers: dict[str, str]) -> AsyncIterator[None]:
    """A request whose client leaves at the end of the block."""
    async with asyncio.timeout(scaled(60)), asyncio.TaskGroup() as group:
        client = group.create_task(real.ask(base, ask, headers))
        yield
        client.cancel()
        with suppress(asyncio.CancelledError):
            await client


async def test_a_client_that_leaves_within_its_request_costs_nothing(real: Real) -> None:
    before = await real.counters(DECODE)
    port = real.fleet.settings.ports.gateway
    for door in (port, *real.fleet.settings.ports.sidecars):
        _, writer = await asyncio.open_connection(HOST, door)
        head = f"POST /v1/completions HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: 1000\r\n"
        writer.write(head.encode() + b"content-type: application/json\r\n\r\n" + b'{"prompt": "')
        await writer.drain()
        await asyncio.sleep(0.1)
        writer.close()
        await writer.wait_closed()
    await real.freed()
    await real.assert_alive()
    assert (await real.counters(DECODE)).transfers == before.transfers


async def test_a_client_that_leaves_before_the_prefill_ran_frees_its_place(
    real: Real, words: Callable[[int], str]
) -> None:
    """Eight long answers keep the prefill engine busy; the ninth request waits its turn."""
    before, kept = await real.counters(DECODE), await real.counters(PREFILL)
    long = Ask("busy", max_tokens=1500, more={"ignore_eos": True})
    async with asyncio.TaskGroup() as group:
        busy = [group.create_task(real.ask(real.engine(PREFILL), long)) for _ in range(8)]
        await real.until(PREFILL, lambda now: now.usage > 0, scaled(10))
        async with leaving(real, real.gateway, Ask(words(100), stream=True), {}):
            await real.until(PREFILL, lambda now: now.waiting == 1, scaled(10))
        await real.until(PREFILL, lambda now: now.waiting == 0, scaled(FREED_S))
        for task in busy:
            task.cancel()
    assert (await real.freed()).expired == kept.expired
    assert (await real.counters(DECODE)).transfers == before.transfers
    await real.assert_alive()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_between_the_legs_frees_the_prefills_blocks(
    real: Real, words: Callable[[int], str], tmp_path: Path, stream: bool
) -> None:
    before, kept = await real.counters(DECODE), await real.counters(PREFILL)
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        reached.set()
        await go_on.wait()

    async with staged(real, tmp_path) as stage:
        stage.between = wait
        ask = Ask(words(120), stream=stream)
        async with leaving(real, stage.sidecar, ask, stage.headers):
            await reached.wait()
            assert (await real.counters(PREFILL)).usage > 0  # pinned for the decode engine
        await asyncio.sleep(0.2)
        assert (await real.counters(PREFILL)).usage > 0
        go_on.set()
        assert (await real.freed()).expired == kept.expired
        assert (await real.pulled(before, 1)).transfers == before.transfers + 1
    await real.assert_alive()


@pytest.mark.parametrize(("stream", "stops_in_s"), [(False, DRAIN_S + 5), (True, FREED_S)])
async def test_a_client_that_leaves_after_the_legs_stops_the_decode_engine(
    real: Real, words: Callable[[int], str], stream: bool, stops_in_s: float
) -> None:
    """An answer in one piece says only with its end that the pull is over, so it may be drained."""
    ask = Ask(words(120), stream=stream, max_tokens=1200, more={"ignore_eos": True})
    before, kept = await real.counters(DECODE), await real.counters(PREFILL)
    async with leaving(real, real.gateway, ask, {}):
        await real.until(DECODE, lambda now: now.usage > 0, scaled(10))
        await real.pulled(before, 1)
    assert (await real.freed()).expired == kept.expired
    await real.until(DECODE, lambda now: now.usage == 0, scaled(stops_in_s))
    await real.assert_alive()


async def test_a_lease_that_is_nearly_over_is_not_used(
    real: Real, words: Callable[[int], str], tmp_path: Path
) -> None:
    """The sidecar counts on a lease of 8 s and a margin of 5: an answer that takes 4 s is too old.

    It asks for a fresh prefill; the first one's blocks are still good, so the test frees them.
    """
    ask = Ask(words(90), stream=True)
    [text] = await real.alone(ask)
    before, kept = await real.counters(DECODE), await real.counters(PREFILL)

    async def late_once() -> None:
        if stage.legs == 1:
            await asyncio.sleep(4)

    async with staged(real, tmp_path, "--kv-lease", "8", "--kv-lease-margin", "5") as stage:
        stage.between = late_once
        answer = await stage.ask(ask)
        assert (answer.status, answer.text) == (200, text)
        assert stage.legs == 2
        await stage.counted({("answered", "split"): 1})
        now = await real.pulled(before, 1)
        blocks = real.blocks(answer.prompt_tokens)
        assert now.pulled_bytes - before.pulled_bytes == blocks * real.block_bytes
        unused = json.loads(stage.answers[0])["kv_transfer_params"]
    pull = Ask(ask.prompt, max_tokens=1, more={"kv_transfer_params": unused})
    assert (await real.ask(real.engine(DECODE), pull)).status == 200
    now = await real.freed()
    assert (now.expired, now.late) == (kept.expired, kept.late)
