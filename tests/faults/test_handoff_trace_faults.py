"""Field fault D21 over real sockets: in which trace both engines find their legs.

Each docstring names what protects; every one of these was seen red with that disabled.
"""

from pathlib import Path

import pytest

from epp.tracing.context import read
from tests.fakes.collector import Collector
from tests.fakes.split_pool import Station, prompt, split_pool
from tests.fakes.waiting import until

pytestmark = pytest.mark.usefixtures("each_relay")

CLIENT = f"00-{'a' * 31}1-{'b' * 16}-01"
ASK = {"prompt": prompt("t"), "max_tokens": 8}


def told(station: Station, name: str = "traceparent") -> list[str]:
    """What the engine's latest request says."""
    return list(station.sim.recorder.requests[-1].values(name))


async def test_D21_each_leg_is_a_span_of_its_own_in_the_clients_trace(tmp_path: Path) -> None:
    """Protected by `HandoffTrace.begins`. Red when the legs share one span."""
    collector = Collector()
    async with (
        collector.upstream.running(),
        split_pool(tmp_path, trace_endpoint=collector.endpoint) as pool,
    ):
        status, _ = await pool.post(ASK, traceparent=CLIENT, tracestate="x=1")
        assert status == 200
        await pool.decode.counted({("answered", "split"): 1})
        legs = {"prefill": pool.prefill, "decode": pool.decode}
        found = {name: read(told(station)) for name, station in legs.items()}
        assert [told(station, "tracestate") for station in legs.values()] == [["x=1"], ["x=1"]]
        await until(lambda: len(collector.spans) == 3)
    (handoff,) = collector.named("handoff")
    assert handoff.parent == "b" * 16
    for name, context in found.items():
        (span,) = collector.named(name)
        assert context is not None
        assert (context.trace_id, context.span_id) == (span.trace_id, span.span_id)
        assert (span.trace_id, span.parent) == ("a" * 31 + "1", handoff.span_id)


async def test_D21_legs_without_a_trace_share_a_fresh_one(tmp_path: Path) -> None:
    """Protected by `HandoffTrace.told`, with no word of what could not be read."""
    async with split_pool(tmp_path) as pool:
        traces = set()
        for fields in ({}, {"traceparent": "00-zz", "tracestate": "x=1"}):
            status, _ = await pool.post(ASK, **fields)
            assert status == 200
            seen = [told(pool.prefill), told(pool.decode)]
            assert [told(pool.prefill, "tracestate"), told(pool.decode, "tracestate")] == [[], []]
            assert seen[0] == seen[1]
            context = read(seen[0])
            assert context is not None
            traces.add(context.trace_id)
        assert len(traces) == 2


async def test_D21_where_nothing_is_recorded_legs_keep_the_clients_place(tmp_path: Path) -> None:
    """Protected by `HandoffTrace.told`: a span that nobody tells of would be a hole in the tree."""
    async with split_pool(tmp_path) as pool:
        status, _ = await pool.post(ASK, traceparent=CLIENT, tracestate="x=1")
        assert status == 200
        for station in pool.stations:
            assert told(station) == [CLIENT]
            assert told(station, "tracestate") == ["x=1"]
        await pool.decode.counted({("answered", "split"): 1})
