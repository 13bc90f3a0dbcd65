"""The metrics page of the simulated engine against one that a real vLLM 0.32 wrote."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from epp.sim.engine import Engine
from epp.sim.serving.page import render
from epp.sim.settings import EngineSettings, KvRole
from epp.sim.submission import Submission

RECORDED = Path(__file__).parent.parent / "data" / "vllm-0.32.0" / "metrics_agg_0.32.0.txt"
RECORDED_WITH_NIXL = RECORDED.with_name("metrics_D_after_failures_0.32.0.txt")
Series = dict[str, list[tuple[dict[str, str], float]]]


def series(page: str) -> Series:
    found: Series = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def simulated(model: str = "tiny", kv_role: KvRole | None = None) -> tuple[Series, Engine]:
    settings = EngineSettings(model=model, block_tokens=32, num_blocks=64, kv_role=kv_role)
    engine = Engine(settings)
    for number in range(2):
        engine.admit(Submission(id=str(number), prompt=range(70), max_tokens=3), 0.0)
    engine.step(0.0)
    return series(render(engine, settings, start_s=1.7e9 + 0.25).decode()), engine


@pytest.mark.parametrize(
    ("kv_role", "recorded"), [(None, RECORDED), ("consumer", RECORDED_WITH_NIXL)]
)
def test_every_series_has_the_name_and_labels_of_a_real_one(
    kv_role: KvRole | None, recorded: Path
) -> None:
    real = series(recorded.read_text())
    page = simulated(kv_role=kv_role)[0]
    assert any("nixl" in name for name in page) == (kv_role is not None)
    for name, samples in page.items():
        if name.startswith("sim:"):
            continue
        assert name in real, name
        for labels, _ in samples:
            if name == "vllm:cache_config_info":
                assert labels.keys() <= real[name][0][0].keys()
            else:
                assert labels in [pairs for pairs, _ in real[name]]


def test_the_values_are_the_engines() -> None:
    page, engine = simulated()
    values = {name: samples[0][1] for name, samples in page.items()}
    assert values["vllm:num_requests_running"] == engine.running == 2
    assert values["vllm:num_requests_waiting"] == 0
    # Three blocks of the first; the second shares two of them.
    assert values["vllm:kv_cache_usage_perc"] == 4 / 64
    assert values["vllm:prefix_cache_queries_total"] == 140
    assert values["vllm:prefix_cache_hits_total"] == 64
    assert values["process_start_time_seconds"] == 1.7e9 + 0.25
    (config,) = page["vllm:cache_config_info"]
    assert config[0]["block_size"] == "32"
    assert config[0]["num_gpu_blocks"] == "64"


def test_a_model_name_with_quotes_stays_one_label() -> None:
    page, _ = simulated('a "b"\\c')
    (sample,) = page["vllm:num_requests_running"]
    assert sample[0]["model_name"] == 'a "b"\\c'
