"""Engine metrics pages, recorded and made up."""

from pathlib import Path

import pytest

from epp.framework import Lora
from epp.framework.engines import EngineNames, specs
from epp.state.metrics_page import EngineMetrics, PageError, StepTotals, parse_page
from epp.state.reports import LoadReport

DATA = Path(__file__).parent.parent / "data" / "vllm-0.32.0"


def test_a_recorded_page_of_an_aggregated_engine() -> None:
    page = parse_page((DATA / "metrics_agg_0.32.0.txt").read_bytes())
    assert page.report == LoadReport(
        waiting=0, running=0, kv_usage=0.0, total_blocks=32768, block_tokens=32
    )
    assert page.start_ms == 1_796_039_120_280
    assert page.steps is not None
    assert page.steps.count == 60
    assert 0.1 < page.steps.seconds < 60 * 0.05


def test_steps_are_read_by_an_older_name_too_and_only_whole() -> None:
    old = (
        b'vllm:time_per_output_token_seconds_bucket{engine="0",le="+Inf"} 6\n'
        b'vllm:time_per_output_token_seconds_sum{engine="0"} 0.25\n'
        b'vllm:time_per_output_token_seconds_sum{engine="1"} 0.5\n'
        b'vllm:time_per_output_token_seconds_count{engine="0"} 6\n'
    )
    assert parse_page(old).steps is None
    whole = old + b'vllm:time_per_output_token_seconds_count{engine="1"} 4\n'
    assert parse_page(whole).steps == StepTotals(0.75, 10)


def test_a_recorded_page_of_a_prefill_engine() -> None:
    page = parse_page((DATA / "metrics_P_after_failures_0.32.0.txt").read_bytes())
    assert page.report.block_tokens == 32
    assert page.report.waiting == 0
    assert page.start_ms is not None


def test_an_empty_page_knows_nothing() -> None:
    assert parse_page(b"") == EngineMetrics()
    assert parse_page(b"<html>not metrics</html>\n" * 100) == EngineMetrics()


def test_labels_may_hold_braces_quotes_and_spaces() -> None:
    page = parse_page(
        b'vllm:num_requests_waiting{model_name="a} 99 \\"b\\" {c"} 3.0\n'
        b"vllm:num_requests_running 4 1700000000000\n"
        b'vllm:num_requests_waiting_by_reason{reason="capacity"} 77\n'
    )
    assert page.report == LoadReport(waiting=3, running=4)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "oops", ""])
def test_no_usable_number_is_unknown(value: str) -> None:
    page = parse_page(
        f'vllm:num_requests_waiting{{engine="0"}} {value}\n'
        'vllm:num_requests_waiting{engine="1"} 2\nvllm:num_requests_running 1\n'.encode()
    )
    assert page.report.waiting in ({None, 2} if not value else {None})
    assert page.report.running == 1


def test_blocks_of_several_engines_add_up_and_unequal_sizes_do_not() -> None:
    def info(engine: int, size: str, blocks: str) -> bytes:
        labels = f'block_size="{size}",engine="{engine}",num_gpu_blocks="{blocks}"'
        return f"vllm:cache_config_info{{{labels}}} 1.0\n".encode()

    both = parse_page(info(0, "16", "100") + info(1, "16", "200")).report
    assert (both.block_tokens, both.total_blocks) == (16, 300)
    odd = parse_page(info(0, "16", "100") + info(1, "32", "200")).report
    assert (odd.block_tokens, odd.total_blocks) == (None, None)
    unset = parse_page(info(0, "16", "None")).report
    assert (unset.block_tokens, unset.total_blocks) == (16, None)


def test_names_are_configurable() -> None:
    names = EngineNames(name="mine", waiting=specs("queue"), kv_usage=specs("used{kind=kv}"))
    text = (
        b'queue 5\nused{kind="kv"} 0.25\nused{kind="weights"} 0.75\nvllm:num_requests_running 9\n'
    )
    page = parse_page(text, names=names)
    assert page.report == LoadReport(waiting=5, kv_usage=0.25)


def test_the_page_and_its_series_are_bounded() -> None:
    text = b'vllm:num_requests_waiting{engine="x"} 1\n' * 2_000
    assert parse_page(text).report.waiting == 1_024
    assert parse_page(text, max_bytes=len(text)).report.waiting == 1_024
    with pytest.raises(PageError):
        parse_page(text, max_bytes=len(text) - 1)


def lora_line(value: object, running: str = "", waiting: str = "", most: str = "4") -> str:
    labels = (
        f'max_lora="{most}",running_lora_adapters="{running}",waiting_lora_adapters="{waiting}"'
    )
    return f"vllm:lora_requests_info{{{labels}}} {value}\n"


def test_of_all_lora_series_the_latest_is_the_present_one() -> None:
    waiting = 'vllm:num_requests_waiting{engine="0",model_name="base"} 1\n'
    history = [lora_line(1.7e9 + n, running=f"old-{n}") for n in range(3_000)]
    lines = [*history, lora_line(1.8e9, "a, b", "c"), *history, lora_line("NaN", "x"), waiting]
    report = parse_page("".join(lines).encode()).report
    assert report.lora == Lora(
        running=frozenset({"a", "b"}), waiting=frozenset({"c"}), most=4, base="base"
    )
    assert report.waiting == 1


def test_no_adapter_at_work_is_not_the_same_as_no_adapters() -> None:
    assert parse_page(lora_line(1.7e9).encode()).report.lora == Lora(most=4)
    assert parse_page(b"vllm:num_requests_waiting 1\n").report.lora is None
    assert parse_page(lora_line("oops", "a").encode()).report.lora is None


def test_labels_of_adapters_that_make_no_sense_say_nothing() -> None:
    several = "".join(
        f'vllm:num_requests_waiting{{model_name="{name}"}} 0\n' for name in ("one", "two")
    )
    page = parse_page((several + lora_line(1.7e9, ",,a,", most="many")).encode())
    assert page.report.lora == Lora(running=frozenset({"a"}), most=0, base="")
