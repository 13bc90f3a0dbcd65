"""What answers take and cost is measured as the reference measures it."""

import pytest
from prometheus_client import CollectorRegistry

from epp.answers import FAMILIES, LABELS, AnswerMetrics, Meter
from epp.bodies.usage import Usage

MODEL = ("m", "m", "", "")
NAMES = dict(zip(LABELS, MODEL, strict=True))


class Page:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = AnswerMetrics(self.registry)

    def meter(self, size: int = 100) -> Meter:
        return self.metrics.meter(MODEL, size, 10.0)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"llm_d_epp_{name}", NAMES | labels)

    def total(self, name: str, **labels: str) -> float:
        """Sum of all observations; there must be exactly one."""
        assert self.value(f"{name}_count", **labels) == 1, name
        return self.value(f"{name}_sum", **labels) or 0.0


def test_a_stream_is_measured_from_its_arrival_to_its_end() -> None:
    page = Page()
    meter = page.meter(size=300)
    assert page.value("request_running") == 1
    meter.streams()
    for size, now in ((10, 10.5), (20, 10.75), (30, 11.75)):
        meter.piece(size, now)
    meter.end(12.5, Usage(40, 32, 5), good=True)
    assert page.value("request_running") == 0
    assert page.total("request_size_bytes") == 300
    assert page.total("response_size_bytes") == 60
    assert page.total("request_ttft_seconds", streaming="true") == 0.5
    assert page.value("request_streaming_itl_seconds_count") == 2
    assert page.value("request_streaming_itl_seconds_sum") == 1.25
    assert page.total("request_streaming_tpot_seconds") == 0.5
    assert page.total("request_duration_seconds") == 2.5
    assert page.total("request_ntpot_seconds") == 0.5
    assert page.total("request_input_tokens") == 40
    assert page.total("request_cached_tokens") == 32
    assert page.total("request_output_tokens") == 5


def test_the_first_token_of_an_answer_in_one_piece_is_its_end() -> None:
    page = Page()
    meter = page.meter()
    meter.piece(10, 10.5)
    meter.piece(10, 10.6)
    meter.end(11.0, Usage(40, None, 2), good=True)
    assert page.total("request_ttft_seconds", streaming="false") == 1.0
    assert page.total("request_ntpot_seconds") == 0.5
    assert page.value("request_streaming_itl_seconds_count") is None
    assert page.value("request_streaming_tpot_seconds_count") is None
    assert page.value("request_cached_tokens_count") is None, "not known is not 0"


@pytest.mark.parametrize("tokens", [None, 0, 1])
def test_nothing_is_divided_by_tokens_that_there_are_not(tokens: int | None) -> None:
    page = Page()
    meter = page.meter()
    meter.streams()
    meter.piece(1, 10.5)
    meter.end(11.0, Usage(completion_tokens=tokens), good=True)
    assert page.value("request_streaming_tpot_seconds_count") is None
    assert page.value("request_ntpot_seconds_count") == (1 if tokens else None)


def test_a_bad_answer_says_nothing_but_that_it_is_over() -> None:
    page = Page()
    meter = page.meter()
    meter.piece(10, 10.5)
    meter.end(11.0, Usage(1, 1, 1), good=False)
    meter.end(12.0, Usage(1, 1, 1), good=True)
    assert page.value("request_running") == 0
    assert page.value("request_size_bytes_count") == 1
    for name in ("request_duration_seconds", "response_size_bytes", "request_input_tokens"):
        assert page.value(f"{name}_count") is None
    assert page.value("request_ttft_seconds_count", streaming="false") is None


def test_an_empty_answer_has_no_first_token() -> None:
    page = Page()
    page.meter().end(11.0, Usage(), good=True)
    assert page.total("request_duration_seconds") == 1.0
    assert page.value("request_ttft_seconds_count", streaming="false") is None


def test_buckets_rise_and_span_what_the_reference_spans() -> None:
    spans = {f.name: (f.buckets[0], f.buckets[-1]) for f in FAMILIES if f.buckets}
    assert spans["llm_d_epp_request_duration_seconds"] == (0.005, 3600)
    assert spans["llm_d_epp_request_ttft_seconds"] == (0.005, 120)
    assert spans["llm_d_epp_request_size_bytes"] == (64, 2**30)
    assert spans["llm_d_epp_response_size_bytes"] == (1, 65_536)
    assert spans["llm_d_epp_request_output_tokens"] == (1, 8192)
    assert all(list(f.buckets) == sorted(set(f.buckets)) for f in FAMILIES)
