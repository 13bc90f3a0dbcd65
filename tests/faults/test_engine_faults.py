"""Faults B03, B04 and B05 on the pages of every kind of engine."""

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from epp.framework import EndpointId, PoolId
from epp.framework.engines import BUILT_IN
from epp.state.endpoints import Endpoints, Member
from epp.state.load import LoadBook
from epp.state.metrics_page import parse_page
from epp.state.pool import PoolState
from epp.state.prefix.index import PrefixIndex
from epp.state.prefix.predicted import PredictedIndex
from epp.state.reports import LoadReport
from epp.state.scrape import Scraper, ScrapeSettings
from tests.fakes.metrics_port import MetricsPort, serving
from tests.fakes.waiting import until

PAGES = Path(__file__).parent.parent / "data" / "engine_pages"
POOL = PoolId("p")

WAITING = {
    "vllm": "vllm:num_requests_waiting{",
    "sglang": "sglang:num_queue_reqs{",
    "trtllm-serve": "trtllm_num_requests_waiting{",
    "triton-tensorrt-llm": 'request_type="waiting"',
    "triton": "nv_inference_pending_request_count{",
}
"""What lines of the queue's series hold."""


def told(engine: str, text: str) -> LoadReport:
    return parse_page(text.encode(), names=BUILT_IN[engine]).report


@pytest.mark.parametrize("engine", sorted(BUILT_IN))
def test_B03_a_family_that_an_engine_does_not_tell_spoils_none_of_its_others(engine: str) -> None:
    """Protected by None for what has no series (metrics_page._total); red when it is 0, for then
    the engine looks idle."""
    lines = (PAGES / f"{engine}.txt").read_text().splitlines(keepends=True)
    whole = told(engine, "".join(lines))
    without = told(engine, "".join(line for line in lines if WAITING[engine] not in line))
    assert (whole.waiting, without.waiting) == (5, None)
    assert (without.running, without.kv_usage) == (whole.running, whole.kv_usage)
    assert (without.total_blocks, without.block_tokens) == (whole.total_blocks, whole.block_tokens)


def test_B04_sizes_that_moved_from_labels_to_gauges_are_read_in_both_places() -> None:
    """Protected by both names of SGLang's pages (framework.engines); red with one of them."""
    old = told("sglang", 'sglang:cache_config_info{num_pages="90",page_size="64"} 1.0\n')
    new = told("sglang", "sglang:page_size 64.0\nsglang:num_pages 90.0\n")
    assert old == new == LoadReport(block_tokens=64, total_blocks=90)


async def test_B04_a_number_that_an_engine_never_tells_is_told_once() -> None:
    """Protected by Scraper._loop, which misses numbers after some pages; red without it: a renamed
    metric would show only in bad choices."""
    said: list[tuple[str, str, tuple[str, ...]]] = []
    pages = {
        "renamed": b"vllm:num_requests_waiting 1\nvllm:num_requests_running 1\nvllm:kv_used 0.5\n",
        "known": b"vllm:num_requests_waiting 1\nvllm:num_requests_running 1\n"
        b"vllm:gpu_cache_usage_perc 0.5\n",
    }
    state = PoolState(POOL, Endpoints(), PrefixIndex(10), PredictedIndex(10, 60.0), LoadBook())
    async with AsyncExitStack() as stack:
        members: list[Member] = []
        ports: list[MetricsPort] = []
        for name, text in pages.items():
            port = await stack.enter_async_context(serving(MetricsPort(text)))
            ports.append(port)
            members.append(
                Member(
                    id=EndpointId(POOL, name, 1),
                    address="127.0.0.1:1",
                    metrics_url=port.url,
                    has_sidecar=False,
                )
            )
        state.replace(members, time.monotonic())
        scraper = Scraper(
            state,
            settings=ScrapeSettings(interval_s=0.1, timeout_s=0.08),
            missed=lambda endpoint, engine, _, numbers: said.append(
                (endpoint.name, engine, numbers)
            ),
        )
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        running = tasks.create_task(scraper.run())
        await until(lambda: min(port.requests for port in ports) >= 10)
        running.cancel()
    assert said == [("renamed", "vllm", ("kv_usage",))]


@pytest.mark.parametrize(
    ("engine", "idle", "busy"),
    [
        (
            "vllm",
            'vllm:num_requests_waiting{engine="1"} 0\nvllm:kv_cache_usage_perc{engine="1"} 0.1\n',
            'vllm:num_requests_waiting{engine="0"} 50\nvllm:kv_cache_usage_perc{engine="0"} 0.9\n',
        ),
        (
            "sglang",
            'sglang:num_queue_reqs{dp_rank="1"} 0\nsglang:token_usage{dp_rank="1"} 0.1\n',
            'sglang:num_queue_reqs{dp_rank="0"} 50\nsglang:token_usage{dp_rank="0"} 0.9\n',
        ),
        (
            "trtllm-serve",
            'trtllm_num_requests_waiting{pid="1"} 0\ntrtllm_kv_cache_utilization{pid="1"} 0.1\n',
            'trtllm_num_requests_waiting{pid="0"} 50\ntrtllm_kv_cache_utilization{pid="0"} 0.9\n',
        ),
        (
            "triton-tensorrt-llm",
            'nv_trt_llm_request_metrics{model="a",request_type="waiting"} 0\n'
            'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="a"} 0.1\n',
            'nv_trt_llm_request_metrics{model="b",request_type="waiting"} 50\n'
            'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="b"} 0.9\n',
        ),
    ],
)
def test_B05_engines_behind_one_page_add_up_whoever_made_them(
    engine: str, idle: str, busy: str
) -> None:
    """Protected by _Page.values, which gives one number of each engine; red when the last series
    wins."""
    for text in (idle + busy, busy + idle):
        report = told(engine, text)
        assert report.waiting == 50
        assert report.kv_usage == pytest.approx(0.5)
