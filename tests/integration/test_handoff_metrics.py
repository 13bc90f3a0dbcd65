"""What the sidecar's page says of handoffs while they run, and after."""

import asyncio
from pathlib import Path

from sidecar.transfer.metrics import PHASES
from tests.fakes.split_pool import Station, prompt, split_pool
from tests.fakes.upstreams import Conversation, RawUpstream, Script, answer
from tests.fakes.waiting import until

ASK = {"prompt": prompt("m"), "max_tokens": 4}
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def phases(station: Station) -> dict[str, float]:
    return {phase: station.metric("handoffs", phase=phase) for phase in PHASES}


def of_posts(script: Script) -> Script:
    """The script, for all but what the sidecar itself asks."""

    async def either(talk: Conversation) -> None:
        posted = talk.request.line.startswith(b"POST")
        await (script if posted else answer(status=b"404 Not Found"))(talk)

    return either


async def test_the_page_tells_what_handoffs_wait_for(tmp_path: Path) -> None:
    step, steps = asyncio.Event(), []

    async def wait() -> None:
        steps.append(None)
        await step.wait()
        step.clear()

    async def prefill(talk: Conversation) -> None:
        await wait()
        body = b'{"kv_transfer_params":{"remote_engine_id":"e","remote_block_ids":[1],'
        body += b'"remote_host":"10.0.0.1","remote_port":1,"do_remote_prefill":true}}'
        await answer(body, fields=b"Content-Type: application/json\r\n")(talk)

    async def decode(talk: Conversation) -> None:
        await wait()
        await talk.send(STREAM)
        await talk.chunk(b'data: {"choices":[{"text":"a"}]}\n\n')
        await wait()
        await talk.chunk(b"data: [DONE]\n\n")
        await talk.send(b"0\r\n\r\n")

    upstreams = {0: RawUpstream(of_posts(prefill)), -1: RawUpstream(of_posts(decode))}
    async with split_pool(tmp_path, upstreams=upstreams) as pool, asyncio.TaskGroup() as tg:
        client = tg.create_task(pool.post({**ASK, "stream": True}))
        for number, phase in enumerate(("prefilling", "decoding", "streaming"), 1):
            await until(lambda number=number: len(steps) == number)
            await until(lambda phase=phase: phases(pool.decode)[phase] == 1)
            assert sum(phases(pool.decode).values()) == 1
            step.set()
        assert (await client)[0] == 200
        assert sum(phases(pool.decode).values()) == 0


async def test_the_page_tells_how_legs_ended_and_what_was_pulled(tmp_path: Path) -> None:
    async with split_pool(tmp_path, prefills=2) as pool:
        bad = "127.0.0.1:1"
        assert (await pool.post(ASK))[0] == 200
        pool.stations[0].fault(status=500, status_count=1)
        assert (await pool.post({**ASK, "prompt": prompt("n")}))[0] == 200
        assert (await pool.post({**ASK, "prompt": prompt("o")}, targets=bad))[0] == 200
        decode = pool.decode
        assert decode.metric("legs_total", leg="prefill", outcome="answered") == 2
        assert decode.metric("legs_total", leg="prefill", outcome="status") == 1
        assert decode.metric("legs_total", leg="decode", outcome="answered") == 2
        assert decode.metric("leg_retries_total", leg="prefill", after="status") == 1
        assert decode.metric("handed_off_total") == decode.metric("pulled_total") == 2
        assert decode.metric("decode_leg_seconds_count", kv="pulled") == 2
        assert decode.metric("handoff_age_seconds_count") == 2
        assert decode.metric("handoff_gap_seconds_count") == 2
        assert decode.metric("handoff_age_seconds_sum") <= decode.metric("handoff_gap_seconds_sum")
