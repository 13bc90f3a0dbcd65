"""The metrics page of a simulated engine: names and labels of vLLM 0.32, as far as pickers read."""

from collections.abc import Iterable

from epp.sim.engine import Engine
from epp.sim.serving.families import Family, Labels, totals, written
from epp.sim.serving.families import counter as counter_of
from epp.sim.serving.families import gauge as gauge_of
from epp.sim.serving.transfer_page import transfer_families
from epp.sim.settings import EngineSettings
from epp.sim.submission import Ending

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"


def render(engine: Engine, settings: EngineSettings, *, start_s: float) -> bytes:
    """The page as it is at this instant; `start_s` is the engine's start in Unix seconds."""
    labels = {"engine": "0", "model_name": settings.model}
    families = (
        Family(
            "process_start_time_seconds",
            "gauge",
            "Start of the engine in Unix seconds.",
            (({}, start_s),),
        ),
        *_engine_families(engine, labels),
        _cache_config(engine, settings),
        Family(
            "vllm:admission_rejections_total",
            "counter",
            "Requests refused because too many wait.",
            (
                (
                    {"model_name": settings.model, "reason": "max_num_queued_reqs"},
                    engine.counters.refused,
                ),
            ),
        ),
    )
    handed = () if settings.kv_role is None else transfer_families(engine, settings, labels)
    return written((*families, *handed)).encode()


def _engine_families(engine: Engine, labels: Labels) -> Iterable[Family]:
    count = engine.counters

    def gauge(name: str, text: str, value: float) -> Family:
        return gauge_of(f"vllm:{name}", text, labels, value)

    def counter(name: str, text: str, value: float) -> Family:
        return counter_of(f"vllm:{name}", text, labels, value)

    yield gauge("num_requests_running", "Requests in the batch.", engine.running)
    yield gauge("num_requests_waiting", "Requests that wait.", engine.waiting)
    yield Family(
        "vllm:num_requests_waiting_by_reason",
        "gauge",
        "Requests that wait, by reason.",
        (
            ({**labels, "reason": "capacity"}, engine.waiting - engine.deferred),
            ({**labels, "reason": "deferred"}, engine.deferred),
        ),
    )
    yield gauge("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", engine.kv_usage)
    yield counter("prefix_cache_queries_total", "Tokens looked up.", count.prefix_queries)
    yield counter("prefix_cache_hits_total", "Tokens found.", count.prefix_hits)
    yield counter("num_preemptions_total", "Requests that lost their blocks.", count.preemptions)
    yield counter("prompt_tokens_total", "Prompt tokens of started requests.", count.prompt_tokens)
    yield Family(
        "vllm:prompt_tokens_by_source_total",
        "counter",
        "Prompt tokens by where their KV came from.",
        (
            ({**labels, "source": "local_compute"}, count.computed_prompt_tokens),
            ({**labels, "source": "local_cache_hit"}, count.cached_tokens),
            ({**labels, "source": "external_kv_transfer"}, count.pulled_tokens),
        ),
    )
    cached = count.cached_tokens + count.pulled_tokens
    yield counter("prompt_tokens_cached_total", "Prompt tokens found or pulled.", cached)
    yield counter("generation_tokens_total", "Answered tokens.", count.generation_tokens)
    yield totals(
        "vllm:inter_token_latency_seconds",
        "From one token of an answer to the next.",
        labels,
        count=count.gaps,
        total=count.gap_seconds,
    )
    yield Family(
        "vllm:request_success_total",
        "counter",
        "Ended requests by reason.",
        tuple(
            ({**labels, "finished_reason": ending.value}, count.ended[ending]) for ending in Ending
        ),
    )


def _cache_config(engine: Engine, settings: EngineSettings) -> Family:
    labels = {
        "block_size": str(settings.block_tokens),
        "cache_dtype": "auto",
        "enable_prefix_caching": "True",
        "engine": "0",
        "kv_cache_size_tokens": str(settings.block_tokens * settings.num_blocks),
        "num_gpu_blocks": str(engine.pool.total),
        "prefix_caching_hash_algo": "xxh3_64",
    }
    return Family("vllm:cache_config_info", "gauge", "How the KV cache is made.", ((labels, 1),))
