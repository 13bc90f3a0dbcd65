"""What the simulated engine says, as the state path reads it."""

import aiohttp
import pytest

from epp.sim.tokenizer import encode
from epp.state.blocks import seed_of, token_keys
from epp.state.engine_blocks import EngineBlocks
from epp.state.events import decode, split_frames
from epp.state.metrics_page import parse_page
from epp.state.sequence import Continuity, continuity
from tests.fakes.engines import EventTap, eventually, running_engine

PROMPT = "The prefill worker computes the prompt and the decode worker pulls the blocks. " * 20


@pytest.mark.parametrize("block_tokens", [16, 48, 64, 128])
async def test_own_blocks_follow_from_its_events_for_any_block_size(block_tokens: int) -> None:
    blocks = EngineBlocks("sim")
    last = None
    salted = {"prompt": PROMPT, "max_tokens": 1, "cache_salt": "tenant"}
    async with running_engine(block_tokens=block_tokens) as engine:
        assert engine.kv_events_endpoint is not None
        async with (
            EventTap(engine.kv_events_endpoint) as tap,
            aiohttp.ClientSession(engine.url) as http,
        ):
            for body in (salted, {"prompt": PROMPT, "max_tokens": 1}):
                async with http.post("/v1/completions", json=body) as response:
                    assert response.status == 200
                frame = split_frames(await tap.frames())
                assert continuity(last, frame.seq) in {Continuity.FIRST, Continuity.NEXT}
                last = frame.seq
                batch = decode(frame.payload)
                assert batch.skipped == 0
                blocks.apply(batch.events)
            tokens = encode(PROMPT)
            known = len(tokens) // block_tokens * block_tokens // 64
            expected = {
                key
                for salt in ("", "tenant")
                for key in token_keys(tokens, seed_of("sim", salt=salt))[:known]
            }
            assert known >= 4
            assert set(blocks.present()) == expected

            async with http.post("/admin/evict", json={"all": True}):
                pass
            blocks.apply(decode(split_frames(await tap.frames()).payload).events)
            assert blocks.present() == []


async def test_its_metrics_page_is_read_in_full() -> None:
    body = {"prompt": PROMPT, "max_tokens": 10_000, "stream": True}
    async with (
        running_engine(max_num_seqs=1, num_blocks=1024, max_batched_tokens=64) as engine,
        aiohttp.ClientSession(engine.url) as http,
        http.post("/v1/completions", json=body),
        http.post("/v1/completions", json=body),
    ):
        await eventually(lambda: engine.driver.engine.running == 1)
        async with http.get("/metrics") as response:
            page = parse_page(await response.read())
    assert (page.report.running, page.report.waiting) == (1, 1)
    assert page.steps is not None
    assert page.report.kv_usage is not None
    assert 0 < page.report.kv_usage < 1
    assert (page.report.total_blocks, page.report.block_tokens) == (1024, 16)
    # A float of seconds carries a millisecond, give or take its rounding.
    assert page.start_ms == pytest.approx(engine.start_ns / 1e6, abs=1)
