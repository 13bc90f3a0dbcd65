"""Pages of each kind of engine, read by the names of that kind."""

from pathlib import Path

import pytest

from epp.framework import EngineNames, Engines, Lora
from epp.framework.engines import (
    BUILT_IN,
    SETTINGS,
    SGLANG,
    TRITON,
    VLLM,
    MetricSpec,
    described,
    specs,
)
from epp.state.metrics_page import EngineMetrics, parse_page
from epp.state.reports import LoadReport

PAGES = Path(__file__).parent.parent / "data" / "engine_pages"
SAME = LoadReport(waiting=5, running=3, kv_usage=0.25, total_blocks=2000, block_tokens=32)


def read(page: str, engine: str | None = None) -> LoadReport:
    names = BUILT_IN[engine or page]
    return parse_page((PAGES / f"{page}.txt").read_bytes(), names=names).report


@pytest.mark.parametrize("engine", ["sglang", "trtllm-serve", "triton-tensorrt-llm"])
def test_each_engine_tells_its_load_by_its_own_names(engine: str) -> None:
    assert read(engine) == SAME


def test_vllm_tells_its_adapters_too() -> None:
    lora = Lora(running=frozenset({"sql"}), waiting=frozenset({"chat"}), most=2, base="llama")
    assert read("vllm") == LoadReport(
        waiting=5, running=3, kv_usage=0.25, total_blocks=2000, block_tokens=32, lora=lora
    )


def test_later_versions_of_sglang_tell_of_ranks_and_priorities_and_count_once() -> None:
    assert read("sglang-gauges", "sglang") == SAME


def test_batches_since_the_start_of_a_triton_server_are_no_running_requests() -> None:
    assert read("triton") == LoadReport(waiting=5)


def test_ranks_of_a_data_parallel_sglang_are_engines_of_their_own() -> None:
    text = "".join(
        f'sglang:num_queue_reqs{{dp_rank="{dp}",tp_rank="{tp}"}} {4 + 2 * dp}\n'
        f'sglang:cache_config_info{{dp_rank="{dp}",num_pages="1000",page_size="16",'
        f'tp_rank="{tp}"}} 1.0\n'
        for dp in (0, 1)
        for tp in (0, 1)
    )
    report = parse_page(text.encode(), names=SGLANG).report
    assert (report.waiting, report.total_blocks, report.block_tokens) == (10, 2000, 16)


def test_copies_of_which_one_is_no_number_are_not_known() -> None:
    text = b'sglang:num_queue_reqs{tp_rank="0"} 4\nsglang:num_queue_reqs{tp_rank="1"} NaN\n'
    assert parse_page(text, names=SGLANG).report.waiting is None


@pytest.mark.parametrize("engine", sorted(BUILT_IN))
def test_the_page_of_another_engine_tells_nothing(engine: str) -> None:
    other = "trtllm-serve" if engine != "trtllm-serve" else "sglang"
    assert read(other, engine) == LoadReport()


def test_gauges_of_unequal_block_sizes_are_not_added_up() -> None:
    names = EngineNames(name="e", block_tokens=specs("size"), total_blocks=specs("blocks"))

    def blocks(text: str) -> tuple[int | None, int | None]:
        report = parse_page(text.encode(), names=names).report
        return report.block_tokens, report.total_blocks

    assert blocks('size{e="0"} 16\nsize{e="1"} 16\nblocks{e="0"} 7\nblocks{e="1"} 8\n') == (16, 15)
    assert blocks('size{e="0"} 16\nsize{e="1"} 32\nblocks{e="0"} 7\nblocks{e="1"} 8\n') == (
        None,
        None,
    )
    assert blocks("size 16\n") == (16, None)
    assert blocks("size 16\nblocks NaN\n") == (16, None)
    assert blocks("blocks 7\n") == (None, None)


def test_a_series_needs_all_labels_of_a_spec() -> None:
    names = EngineNames(name="e", waiting=specs('q{state=waiting, kind="a b"}'))
    text = b'q{state="waiting"} 1\nq{kind="a b",state="waiting"} 2\nq{kind="a b",state="x"} 4\n'
    assert parse_page(text, names=names).report.waiting == 2


def test_of_several_specs_the_first_with_a_series_counts() -> None:
    names = EngineNames(name="e", waiting=specs("q{new=yes}", "q{new=}"))
    assert parse_page(b'q{new="yes"} 1\nq 2\n', names=names).report.waiting == 1
    assert parse_page(b'q{new="no"} 1\nq 2\n', names=names).report.waiting == 2


def test_adapters_of_another_engine_are_read_by_the_labels_of_vllm() -> None:
    names = described(EngineNames(name="e"), {"lora_spec": "adapters{kind=lora}"})
    line = 'adapters{{kind="{}",max_lora="3",running_lora_adapters="{}"}} {}\n'
    text = line.format("lora", "a", 1) + line.format("lora", "b", 2) + line.format("other", "c", 3)
    lora = parse_page(text.encode(), names=names).report.lora
    assert lora == Lora(running=frozenset({"b"}), most=3)


def test_an_engine_is_described_by_what_differs() -> None:
    changed = described(
        VLLM,
        {
            "queued_requests_spec": "q",
            "lora_spec": "",
            "cache_block_size_label_name": "size",
            "cache_num_blocks_label_name": "",
        },
    )
    assert changed.waiting == (MetricSpec("q"),)
    assert changed.lora == ()
    assert (changed.block_tokens_label, changed.total_blocks_label) == ("size", "num_gpu_blocks")
    assert changed.running == VLLM.running
    assert described(VLLM, {}) == VLLM
    with pytest.raises(ValueError, match="a spec is a family"):
        described(VLLM, dict.fromkeys(SETTINGS, "a b"))


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("a:b", MetricSpec("a:b")),
        (" a{} ", MetricSpec("a")),
        ("a{b=c}", MetricSpec("a", (("b", "c"),))),
        ('a{ b = "c d" , e = f }', MetricSpec("a", (("b", "c d"), ("e", "f")))),
        ("a{b=}", MetricSpec("a", (("b", ""),))),
    ],
)
def test_a_spec_is_a_family_with_labels_that_may_be_quoted(text: str, spec: MetricSpec) -> None:
    assert MetricSpec.parse(text) == spec


def test_engines_without_a_label_are_vllm() -> None:
    assert Engines().of({}) == VLLM
    assert Engines(default="triton").of({"llm-d.ai/engine-type": "no-such"}) == TRITON


def test_an_empty_page_knows_nothing_whatever_the_engine() -> None:
    for names in BUILT_IN.values():
        assert parse_page(b"", names=names) == EngineMetrics()
