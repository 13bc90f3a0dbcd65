"""What a collector of traces is told of handoffs."""

from pathlib import Path

import pytest

from sidecar.settings import SidecarSettings
from tests.fakes.collector import Collector
from tests.fakes.split_pool import prompt, split_pool
from tests.fakes.upstreams import RawUpstream, answer
from tests.fakes.waiting import until

CLIENT = f"00-{'a' * 31}1-{'b' * 16}-01"
UNSAMPLED = CLIENT[:-1] + "0"
ASK = {"prompt": prompt("t"), "max_tokens": 8}


async def test_a_handoff_is_told_with_its_legs_and_what_became_of_it(tmp_path: Path) -> None:
    collector = Collector()
    async with (
        collector.upstream.running(),
        split_pool(tmp_path, trace_endpoint=collector.endpoint) as pool,
    ):
        status, _ = await pool.post(ASK, traceparent=CLIENT, **{"x-request-id": "mine"})
        assert status == 200
        await until(lambda: len(collector.spans) == 3)
        handoff, prefill, decode = (collector.named(n)[0] for n in ("handoff", "prefill", "decode"))
        assert {span.service for span in collector.spans} == {"epp-sidecar"}
        assert handoff.attributes == {
            "llm_d.pd_proxy.request_id": "mine",
            "llm_d.pd_proxy.connector": "nixlv2",
            "llm_d.pd_proxy.prefill_candidates": 1,
            "llm_d.pd_proxy.disaggregation_used": True,
            "llm_d.pd_proxy.reason": "split",
            "epp.handoff.outcome": "answered",
        }
        assert prefill.attributes == {"llm_d.pd_proxy.prefill_target": pool.prefill.address}
        assert decode.attributes["llm_d.pd_proxy.disaggregation_used"] is True
        first_byte_ms = decode.attributes["epp.first_byte_ms"]
        assert isinstance(first_byte_ms, float)
        # An answer in one piece ends with its first byte, and a wall clock is exact to 0.2 µs.
        assert 0 < first_byte_ms <= decode.took_s * 1000 + 0.001
        assert prefill.took_s + decode.took_s <= handoff.took_s
        assert [span.failure for span in collector.spans] == ["", "", ""]
        await until(lambda: pool.decode.metric("spans_sent") == 3)
        assert pool.decode.metric("spans_lost") == pool.decode.metric("spans_waiting") == 0


async def test_legs_that_fail_say_how(tmp_path: Path) -> None:
    collector = Collector()
    broken = RawUpstream(answer(b"{}", status=b"500 No"))
    async with (
        collector.upstream.running(),
        split_pool(tmp_path, trace_endpoint=collector.endpoint, upstreams={0: broken}) as pool,
    ):
        status, _ = await pool.post(ASK, traceparent=CLIENT)
        assert status == 200
        await until(lambda: len(collector.spans) == 3)
    (prefill,), (decode,), (handoff,) = map(collector.named, ("prefill", "decode", "handoff"))
    assert prefill.failure == "status"
    assert prefill.attributes["http.response.status_code"] == 500
    assert decode.attributes["llm_d.pd_proxy.disaggregation_used"] is False
    assert handoff.attributes["llm_d.pd_proxy.reason"] == "prefill-status"
    assert (decode.failure, handoff.failure) == ("", "")


async def test_a_trace_that_is_not_sampled_is_not_told(tmp_path: Path) -> None:
    collector = Collector()
    async with (
        collector.upstream.running(),
        split_pool(tmp_path, trace_endpoint=collector.endpoint, trace_share=1.0) as pool,
    ):
        for fields in ({"traceparent": UNSAMPLED}, {}):
            status, _ = await pool.post(ASK, **fields)
            assert status == 200
        await until(lambda: len(collector.spans) == 3)
    assert all(span.trace_id != "a" * 31 + "1" for span in collector.spans)
    assert collector.named("handoff")[0].parent == "", "it begins a trace"


async def test_a_collector_that_is_away_costs_spans_and_no_request(tmp_path: Path) -> None:
    collector = Collector(RawUpstream(answer(b"", status=b"400 No")))
    async with (
        collector.upstream.running(),
        split_pool(tmp_path, trace_endpoint=collector.endpoint) as pool,
    ):
        status, _ = await pool.post(ASK, traceparent=CLIENT)
        assert status == 200
        await until(lambda: pool.decode.metric("spans_lost") == 3)


@pytest.mark.parametrize(
    "endpoint", ["collector:4318", "ftp://c/v1/traces", "http://c", "http:///"]
)
def test_an_endpoint_that_is_no_url_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match="trace_endpoint"):
        SidecarSettings(pool="p", name="n", trace_endpoint=endpoint)
