"""Which of an engine's metrics say what.

Type: `core-metrics-extractor`.

Pages are read by the names of the endpoint's engine. Sidecars read their own engine's page, by
their flags `--engine-type` and `--engine-metrics`.

Parameters:
- `engineLabelKey` (`llm-d.ai/engine-type`): label of an endpoint that names its engine; where it is
  absent, `inference.networking.k8s.io/engine-type` does.
- `defaultEngine` (`vllm`): engine of endpoints without it, or with a name that is not known; built
  in are `vllm`, `sglang`, `trtllm-serve`, `triton-tensorrt-llm` and `triton`.
- `engineConfigs` (none): further engines, or others in place of those, each with `name` and any of
  `queuedRequestsSpec`, `runningRequestsSpec`, `kvUsageSpec`, `loraSpec`, `cacheInfoSpec`,
  `cacheBlockSizeLabelName`, `cacheNumBlocksLabelName`, `cacheBlockSizeSpec`, `cacheNumBlocksSpec`.
  A spec is a family, `name{label=value}` for some of its series; without one the number is not
  known. `customMetrics` are not kept.

Several series are several engines behind one page: queues and blocks add up, shares of KV cache are
averaged. The reference takes the latest series. Of `triton` it reads the count of all batches since
the start as running requests, which are not known here.

```yaml
- type: core-metrics-extractor
  parameters:
    engineConfigs:
      - name: my-engine
        queuedRequestsSpec: "my_queue{state=waiting}"
```
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from epp.framework import parameters
from epp.framework.engines import BUILT_IN, SETTINGS, EngineNames, Engines, described


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
        _ = self.names

    @property
    def names(self) -> EngineNames:
        """Raises ValueError for what is no spec."""
        settings = {key: getattr(self, key) for key in SETTINGS}
        return described(EngineNames(name=self.name), settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreMetricsExtractor:
    produces: ClassVar[frozenset[str]] = frozenset({"engine-metrics"})
    engine_label_key: str = "llm-d.ai/engine-type"
    default_engine: str = "vllm"
    engine_configs: tuple[EngineConfig, ...] = ()
    _engines: Engines = field(init=False, repr=False)

    def __post_init__(self) -> None:
        names = [engine.name for engine in self.engine_configs]
        if len(set(names)) < len(names):
            raise ValueError("engineConfigs has an engine twice")
        known = {**BUILT_IN, **{engine.name: engine.names for engine in self.engine_configs}}
        if self.default_engine not in known:
            raise ValueError(f"defaultEngine must be one of {', '.join(sorted(known))}")
        engines = Engines(label=self.engine_label_key, default=self.default_engine, known=known)
        object.__setattr__(self, "_engines", engines)

    def engine(self, labels: Mapping[str, str], /) -> EngineNames:
        return self._engines.of(labels)
