"""Names of the reference that are not plugins of ours: what they come to here, or what to use.

Source of the names: llm-d-router 0.10, `pkg/epp/framework/plugins`, and its configuration loader.
"""

DEFAULT_CONFIG = b"""
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
  - type: decode-filter
  - type: prefill-filter
  - type: prefix-cache-scorer
    parameters: {matchLengthWeight: 0.5, matchLengthScaleTokens: 4096}
  - type: queue-scorer
    parameters: {minRange: 8, maxRange: 8, runningWeight: 0.6}
  - type: queue-scorer
    name: prefill-queue-scorer
    parameters: {minRange: 8, maxRange: 8}
  - type: token-load-scorer
    parameters: {queueThresholdTokens: 65536}
  - type: decode-load-scorer
  - type: kv-cache-utilization-scorer
  - type: prefix-based-pd-decider
    parameters: {nonCachedTokens: 512}
  - type: disagg-profile-handler
    parameters: {deciders: {prefill: prefix-based-pd-decider}}
schedulingProfiles:
  - name: decode
    plugins:
      - pluginRef: decode-filter
      - {pluginRef: prefix-cache-scorer, weight: 2}
      - {pluginRef: queue-scorer, weight: 3}
      - {pluginRef: token-load-scorer, weight: 1}
      - {pluginRef: decode-load-scorer, weight: 1}
      - {pluginRef: kv-cache-utilization-scorer, weight: 1}
  - name: prefill
    plugins:
      - pluginRef: prefill-filter
      - {pluginRef: prefix-cache-scorer, weight: 2}
      - {pluginRef: prefill-queue-scorer, weight: 3}
      - {pluginRef: token-load-scorer, weight: 3}
"""
"""What runs where nobody configured anything."""

PARSERS = frozenset({"openai-parser", "anthropic-parser", "vllmhttp-parser", "passthrough-parser"})
"""Families of parsers; `requestHandler.parsers` chooses among them."""

DEPRECATED = {
    "precise-prefix-cache-scorer": "use prefix-cache-scorer, with precise-prefix-cache-producer",
    "by-label": "use label-selector-filter",
    "by-label-selector": "use label-selector-filter",
    "pd-profile-handler": "use disagg-profile-handler",
    "tokenizer": "use token-producer",
}
"""Older names that still work, and their successors."""

_QUEUE = "flow control comes with a later version; until then nothing is queued by the picker"
_PREDICTOR = "latency is estimated from observed speeds by cost-scorer, without a trained model"
_MULTI = "one pool in one cluster is served; run a picker in each cluster"
_DISCOVERY = "use --endpoints-file"

REFUSED = {
    "latency-scorer": _PREDICTOR,
    "predicted-latency-producer": _PREDICTOR,
    "latency-slo-admitter": _PREDICTOR,
    "slo-headroom-tier-filter": _PREDICTOR,
    "multicluster-queue-scorer": _MULTI,
    "multicluster-kv-cache-utilization-scorer": _MULTI,
    "multicluster-prefix-cache-scorer": _MULTI,
    "multicluster-session-affinity-filter": _MULTI,
    "file-discovery": _DISCOVERY,
    "utilization-detector": _QUEUE,
    "concurrency-detector": _QUEUE,
    "fcfs-ordering-policy": _QUEUE,
    "edf-ordering-policy": _QUEUE,
    "slo-deadline-ordering-policy": _QUEUE,
    "global-strict-fairness-policy": _QUEUE,
    "round-robin-fairness-policy": _QUEUE,
    "program-aware-fairness": _QUEUE,
    "static-usage-limit-policy": _QUEUE,
    "priority-holdback-policy": _QUEUE,
    "soft-reflective-ceiling-policy": _QUEUE,
    "probabilistic-admitter": _QUEUE,
}
"""Types of the reference that are not here, and what to use instead."""

GATES = {"flowControl": _QUEUE, "haPopulateNonLeaderDatastore": ""}
"""Feature gates: why each is not offered; empty where it means nothing here, since every replica
follows the pool."""

SECTIONS = {"flowControl": _QUEUE, "saturationDetector": _QUEUE}
"""Parts of the document that are not offered, and why."""
