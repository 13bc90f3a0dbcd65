"""How engines tell their load: the names of the metrics on their pages. Values, and no reading.

Names of the built-in engines are those of the model server protocol of the Gateway API Inference
Extension, its proposal 003, but for what is said at each.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Self

LABEL = "llm-d.ai/engine-type"
"""Label of an endpoint that names its engine."""
LEGACY_LABEL = "inference.networking.k8s.io/engine-type"
"""The older one, read where the label above is absent."""
DEFAULT = "vllm"
PAGE = "/metrics"

_PAIR = r'\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(?:"([^"{},]*)"|([^"{},]*))\s*'
_SPEC = re.compile(rf"([A-Za-z_:][A-Za-z0-9_:]*)\s*(?:\{{((?:{_PAIR}(?:,{_PAIR})*)?)\}})?")
_PAIRS = re.compile(_PAIR)


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """A family of metrics, or those of its series that have the labels."""

    family: str
    labels: tuple[tuple[str, str], ...] = ()
    """Name and value. An empty value stands for an absent label too, as in PromQL."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `name` or `name{label=value,…}`, with or without quotes. Raises ValueError."""
        found = _SPEC.fullmatch(text.strip())
        if found is None:
            raise ValueError(f"a spec is a family, such as name{{label=value}}, got {text!r}")
        pairs = _PAIRS.findall(found[2] or "")
        return cls(found[1], tuple((name, quoted or bare.strip()) for name, quoted, bare in pairs))

    def part(self, suffix: str) -> Self:
        """The series of a histogram whose family has this at its end, such as `_sum`."""
        return replace(self, family=self.family + suffix)

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(name, "") == value for name, value in self.labels)


Specs = tuple[MetricSpec, ...]
"""Of several the first that is on the page counts, for engines rename their metrics (fault B04);
of none the number is not known."""


def specs(*texts: str) -> Specs:
    """Those that are not empty. Raises ValueError."""
    return tuple(MetricSpec.parse(text) for text in texts if text.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineNames:
    """Where one kind of engine says what."""

    name: str
    waiting: Specs = ()
    running: Specs = ()
    kv_usage: Specs = ()
    """A share from 0 to 1."""
    cache_info: Specs = ()
    """A constant gauge with the two labels below."""
    block_tokens_label: str = "block_size"
    total_blocks_label: str = "num_gpu_blocks"
    block_tokens: Specs = ()
    """A gauge whose value is the number, where no label tells it."""
    total_blocks: Specs = ()
    steps: Specs = ()
    """A histogram of the seconds between two tokens of an answer; only sum and count are read."""
    lora: Specs = ()
    """A gauge whose value is Unix time and whose labels are those of vLLM."""
    engine_label: str = "engine"
    """Of `cache_info`: tells engines behind one page apart."""
    copies: frozenset[str] = frozenset()
    """Labels that tell apart only the ranks of one engine, each of which says the same."""
    page: str = PAGE
    """Path of the page."""


VLLM = EngineNames(
    name="vllm",
    waiting=specs("vllm:num_requests_waiting"),
    running=specs("vllm:num_requests_running"),
    kv_usage=specs("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    cache_info=specs("vllm:cache_config_info"),
    steps=specs("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    lora=specs("vllm:lora_requests_info"),
)

SGLANG = EngineNames(
    name="sglang",
    # With priorities, the series with an empty one is the sum of the others.
    waiting=specs("sglang:num_queue_reqs{priority=}"),
    running=specs("sglang:num_running_reqs{priority=}"),
    kv_usage=specs("sglang:token_usage{priority=}"),
    cache_info=specs("sglang:cache_config_info"),
    block_tokens_label="page_size",
    total_blocks_label="num_pages",
    # Since 0.5.11 in place of the labels.
    block_tokens=specs("sglang:page_size{priority=}"),
    total_blocks=specs("sglang:num_pages{priority=}"),
    steps=specs("sglang:inter_token_latency_seconds"),
    engine_label="dp_rank",
    copies=frozenset({"tp_rank", "pp_rank", "moe_ep_rank"}),
)

TRTLLM_SERVE = EngineNames(
    name="trtllm-serve",
    waiting=specs("trtllm_num_requests_waiting"),
    running=specs("trtllm_num_requests_running"),
    kv_usage=specs("trtllm_kv_cache_utilization"),
    block_tokens=specs("trtllm_kv_cache_tokens_per_block"),
    total_blocks=specs("trtllm_kv_cache_max_blocks"),
    page="/prometheus/metrics",  # its /metrics is a JSON list of iterations
)

TRITON_TENSORRT_LLM = EngineNames(
    name="triton-tensorrt-llm",
    waiting=specs("nv_trt_llm_request_metrics{request_type=waiting}"),
    running=specs("nv_trt_llm_request_metrics{request_type=scheduled}"),
    kv_usage=specs("nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=fraction}"),
    block_tokens=specs("nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=tokens_per}"),
    total_blocks=specs("nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=max}"),
)

TRITON = EngineNames(
    name="triton",
    waiting=specs("nv_inference_pending_request_count"),
    # The protocol names nv_inference_exec_count here, which counts all batches since the start:
    # it says how old a server is, and not how busy.
)

BUILT_IN: Mapping[str, EngineNames] = MappingProxyType(
    {names.name: names for names in (VLLM, SGLANG, TRTLLM_SERVE, TRITON_TENSORRT_LLM, TRITON)}
)


_SPECS = {
    "queued_requests_spec": "waiting",
    "running_requests_spec": "running",
    "kv_usage_spec": "kv_usage",
    "lora_spec": "lora",
    "cache_info_spec": "cache_info",
    "cache_block_size_spec": "block_tokens",
    "cache_num_blocks_spec": "total_blocks",
}
_LABELS = {
    "cache_block_size_label_name": "block_tokens_label",
    "cache_num_blocks_label_name": "total_blocks_label",
}
SETTINGS = (*_SPECS, *_LABELS)
"""What a user may say of an engine, as the parameters of `core-metrics-extractor` call it."""


def described(base: EngineNames, settings: Mapping[str, str]) -> EngineNames:
    """An engine with other names: an empty spec is none, an empty label stays as it is.

    Only keys of `SETTINGS`. Raises ValueError for what is no spec.
    """
    changes: dict[str, Any] = {
        _SPECS[key]: specs(text) for key, text in settings.items() if key in _SPECS
    }
    changes |= {_LABELS[key]: label for key, label in settings.items() if label and key in _LABELS}
    return replace(base, **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """The engines that are known, and how to tell which one an endpoint is."""

    label: str = LABEL
    default: str = DEFAULT
    """Engine of endpoints whose labels name none, or none that is known. One of `known`."""
    known: Mapping[str, EngineNames] = field(default_factory=lambda: BUILT_IN)

    def of(self, labels: Mapping[str, str]) -> EngineNames:
        """The engine of an endpoint with these labels."""
        named = labels.get(self.label, "") or labels.get(LEGACY_LABEL, "")
        return self.known.get(named, self.known[self.default])
