"""Names of the reference that are not plugins of ours: what they come to here, or what to use.

Source of the names: llm-d-router 0.10, `cmd/epp/runner` and `pkg/epp/framework/plugins`.
"""

PARSERS = frozenset(
    {
        "openai-parser",
        "anthropic-parser",
        "vllmhttp-parser",
        "passthrough-parser",
        "sglanghttp-parser",
        "vllmgrpc-parser",
        "vertexai-parser",
    }
)
"""Families of parsers; `requestHandler.parsers` chooses among them."""

NOTHING_TO_DO = {
    "endpoint-notification-source": "every part follows the pool's members in any case",
    "disagg-headers-handler": "its headers are written for every split request",
    "prefill-header-handler": "its headers are written for every split request",
    "topology-extractor": "labels of endpoints are read where they are needed",
    "models-data-extractor": "the names on pages of models are read by models-data-source",
    "destination-endpoint-served-verifier": "--conformance does the same",
}
"""Types that may stand in a configuration and do nothing here, because it is done in any case."""

DEPRECATED = {
    "precise-prefix-cache-scorer": "prefix-cache-scorer, with precise-prefix-cache-producer",
    "by-label": "label-selector-filter",
    "by-label-selector": "label-selector-filter",
    "pd-profile-handler": "disagg-profile-handler",
    "data-parallel-profile-handler": "single-profile-handler, with a port for each engine",
    "tokenizer": "token-producer",
}
"""Older names that still work, and their successors."""

QUEUE = "flow control comes with a later version; until then nothing is queued by the picker"
_MULTI = "one pool in one cluster is served; run a picker in each cluster"
_KUBERNETES = (
    "it watches Kubernetes objects for plugins that read them, and no plugin here reads any; the "
    "picker watches its own pool by itself"
)
_GPU = "GPUs are not asked; engines' own load is, by kv-cache-utilization-scorer and others"
_BURST = "predictions are made when a request is routed, so that bursts of equal prompts spread"
_SOURCE = "the picker names no source of KV outside of a split request"
_PEERS = "replicas share what they know through --store redis"
_REPORT = "the gateway's access log has the usage of answers; nothing is computed from it here"
_PAIRS = "pair by a label with pair-label-filter"

REFUSED = {
    "multicluster-queue-scorer": _MULTI,
    "multicluster-kv-cache-utilization-scorer": _MULTI,
    "multicluster-prefix-cache-scorer": _MULTI,
    "multicluster-session-affinity-filter": _MULTI,
    "multicluster-approx-prefix-cache-producer": _MULTI,
    "multicluster-metrics-data-source": _MULTI,
    "multicluster-metrics-extractor": _MULTI,
    "multicluster-file-discovery": _MULTI,
    "k8s-notification-source": _KUBERNETES,
    "dcgm-data-source": _GPU,
    "dcgm-extractor": _GPU,
    "burst-prefix-cache-producer": _BURST,
    "p2p-source-producer": _SOURCE,
    "local-syncer": _PEERS,
    "request-attribute-reporter": _REPORT,
    "agent-identity": "name the session's header in session-affinity-scorer",
    "disaggregatedset-rollout-screener": _PAIRS,
    "disaggregatedset-rollout-pod-extractor": _PAIRS,
    "fcfs-ordering-policy": QUEUE,
    "edf-ordering-policy": QUEUE,
    "slo-deadline-ordering-policy": QUEUE,
    "global-strict-fairness-policy": QUEUE,
    "round-robin-fairness-policy": QUEUE,
    "program-aware-fairness": QUEUE,
    "static-usage-limit-policy": QUEUE,
    "priority-holdback-policy": QUEUE,
    "soft-reflective-ceiling-policy": QUEUE,
    "sheddable-eviction-filter": QUEUE,
    "priority-then-time-eviction-order-policy": QUEUE,
}
"""Types of the reference that are not here, and what to use instead. An installed plugin of the
same name is used."""

GATES = {"flowControl": QUEUE, "haPopulateNonLeaderDatastore": ""}
"""Feature gates: why one may not be switched on; empty where the switch means nothing here, since
every replica follows the pool."""

DATA_LAYER = {
    "peerDiscovery": _PEERS,
    "crossReplicaSyncerPluginRef": _PEERS,
    "crossReplicaSyncInterval": _PEERS,
}
"""Parts of `dataLayer` that are not offered, and what to use instead."""
