"""Which of an engine's metrics say what.

Type: `core-metrics-extractor`.

Pages are read by the names of vLLM's metrics; other names are checked, and change nothing yet.

Parameters:
- `engineLabelKey` (`llm-d.ai/engine-type`): label of an endpoint that names its engine.
- `defaultEngine` (`vllm`): engine of endpoints without it; built in are `vllm`, `sglang`,
  `trtllm-serve`, `triton-tensorrt-llm` and `triton`.
- `engineConfigs` (none): further engines, or other names for those, each with `name` and any of
  `queuedRequestsSpec`, `runningRequestsSpec`, `kvUsageSpec`, `loraSpec`, `cacheInfoSpec`,
  `cacheBlockSizeLabelName`, `cacheNumBlocksLabelName`, `cacheBlockSizeSpec`, `cacheNumBlocksSpec`.
  A spec is a family, `name{label=value}` for some of its series; without one the number is not
  known. `customMetrics` are not kept.

```yaml
- type: core-metrics-extractor
  parameters:
    engineConfigs:
      - name: my-engine
        queuedRequestsSpec: "my_queue{state=waiting}"
```
"""

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from epp.framework import parameters

BUILT_IN = ("vllm", "sglang", "trtllm-serve", "triton-tensorrt-llm", "triton")

_PAIR = r'\s*[A-Za-z_][A-Za-z0-9_]*\s*=\s*("[^"{},]*"|[^"{},]*)\s*'
_SPEC = re.compile(rf"[A-Za-z_:][A-Za-z0-9_:]*\s*(\{{({_PAIR}(,{_PAIR})*)?\}})?")


@parameters
class EngineConfig:
    name: str
    queued_requests_spec: str = ""
    running_requests_spec: str = ""
    kv_usage_spec: str = ""
    lora_spec: str = ""
    cache_info_spec: str = ""
    cache_block_size_label_name: str = "block_size"
    cache_num_blocks_label_name: str = "num_gpu_blocks"
    cache_block_size_spec: str = ""
    cache_num_blocks_spec: str = ""
    custom_metrics: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name must name an engine")
        if self.custom_metrics:
            raise ValueError("customMetrics are not kept: known numbers only can be scored by")
        for spec in self.specs:
            if spec and not _SPEC.fullmatch(spec.strip()):
                raise ValueError(f"a spec is a family, such as name{{label=value}}, got {spec!r}")

    @property
    def specs(self) -> tuple[str, ...]:
        return (
            self.queued_requests_spec,
            self.running_requests_spec,
            self.kv_usage_spec,
            self.lora_spec,
            self.cache_info_spec,
            self.cache_block_size_spec,
            self.cache_num_blocks_spec,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreMetricsExtractor:
    produces: ClassVar[frozenset[str]] = frozenset({"engine-metrics"})
    without_effect: ClassVar[dict[str, str]] = dict.fromkeys(
        ("engine_label_key", "default_engine", "engine_configs"),
        "pages are read by the names of vLLM's metrics",
    )
    engine_label_key: str = "llm-d.ai/engine-type"
    default_engine: str = "vllm"
    engine_configs: tuple[EngineConfig, ...] = ()

    def __post_init__(self) -> None:
        names = [engine.name for engine in self.engine_configs]
        if len(set(names)) < len(names):
            raise ValueError("engineConfigs has an engine twice")
        known = sorted({*names, *BUILT_IN})
        if self.default_engine not in known:
            raise ValueError(f"defaultEngine must be one of {', '.join(known)}")
