"""Header, metadata and service names on the wires that we speak. Imports nothing.

Sources: Gateway API Inference Extension, endpoint picker protocol (proposal 004); names with
`x-epp-` are ours.
"""

EXT_PROC_SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
EXT_PROC_METHOD = f"/{EXT_PROC_SERVICE}/Process"

POOL_METADATA = "x-epp-pool"
"""Metadata of an ext_proc stream that names its pool, where one picker serves several: a route's
`grpc_initial_metadata`, which no client can send."""

HEALTH_SERVICES = ("", "liveness", "readiness", EXT_PROC_SERVICE, "inference-extension")
"""Services that grpc.health.v1 answers for; every other name is unknown."""

DESTINATION = "x-gateway-destination-endpoint"
"""Request header and `envoy.lb` metadata key: the chosen `ip:port`, best first, comma separated."""
DESTINATION_SERVED = "x-gateway-destination-endpoint-served"
"""`envoy.lb` metadata key with which the gateway says who truly served."""
SUBSET_HINT = "x-gateway-destination-endpoint-subset"
LB_NAMESPACE = "envoy.lb"
SUBSET_NAMESPACE = "envoy.lb.subset_hint"

DESTINATION_SCORES = "x-gateway-destination-endpoint-scores"
"""`envoy.lb` metadata key: a struct of `ip:port` to score, with `--emit-endpoint-scores`."""

DROP_REASON = "x-llm-d-request-dropped-reason"
"""Header of a refusal: why the request was not routed."""

REQUEST_ID = "x-request-id"

OBJECTIVE = ("x-llm-d-inference-objective", "x-gateway-inference-objective")
"""Name of the request's InferenceObjective. Of two names here and below the first one counts."""
FAIRNESS_ID = ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
MODEL_REWRITE = ("x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite")
"""The name under which the engine knows the model."""
SLO_TTFT_MS = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
SLO_TPOT_MS = ("x-llm-d-slo-tpot-ms", "x-slo-tpot-ms")
TIMEOUT_MS = ("x-envoy-expected-rq-timeout-ms",)
"""Set by an Envoy in front of the gateway: milliseconds until it gives this attempt up."""

ADMIN_TOKEN = "x-epp-admin-token"  # noqa: S105 - a header's name
"""Request header of an operator who wants to be told the decision; see `DECISION`."""

GATEWAY_HEADERS = (
    *OBJECTIVE,
    *FAIRNESS_ID,
    *MODEL_REWRITE,
    *SLO_TTFT_MS,
    *SLO_TPOT_MS,
    ADMIN_TOKEN,
)
"""What a gateway lets pass to the picker: read there, and removed before the engine."""

CONFORMANCE_SELECTION = "test-epp-endpoint-selection"
"""Request header, `ip` or `ip:port`, comma separated: who may serve; only with `--conformance`."""
CONFORMANCE_SERVED = "x-conformance-test-served-endpoint"
"""Response header with the endpoint that served; only with `--conformance`."""

DECISION_ID = "x-epp-decision-id"
"""Request header, picker to sidecar: names this decision in the sidecar's `done` reports."""
PREDICTED_CACHED_TOKENS = "x-epp-predicted-cached-tokens"
"""Request header, picker to sidecar: prompt tokens that the picker expects to be cached."""

TIMEOUT_LEFT_MS = "x-epp-timeout-left-ms"
"""Request header, picker to sidecar: milliseconds until the gateway gives the request up, where it
said so."""

PREFILLER = "x-prefiller-host-port"
"""Request header, picker to sidecar: who may compute the prompt, `ip:port`, best first, comma
separated. Set where the request is split, and only there."""

ENCODERS = "x-encoder-hosts-ports"
"""Request header, picker to sidecar: who computes images, audio and video, `ip:port`, comma
separated; the sidecar gives each its turn. Set where others compute them, and only there."""

DATA_PARALLEL = "x-data-parallel-host-port"
"""Request header, picker to sidecar: which engine of a pod was chosen, `ip:port`. Set where the
request goes to the pod's primary port."""

KV_SOURCE = "x-kv-cache-source-host-port"
"""Request header, picker to sidecar: who holds KV of the prompt, `ip:port`, comma separated."""

HANDOFF = "x-epp-handoff"
"""Request header, picker to sidecar: the seal of the three lists above; see `epp.seals`."""

DECISION = "x-epp-decision"
"""Response header, only for a request with the admin token: the decision's id, a blank, and the
chosen `ip:port`."""

PICKER_HEADERS = (DECISION_ID, PREDICTED_CACHED_TOKENS, TIMEOUT_LEFT_MS)
"""Set by the picker for the sidecar, which removes them before the engine sees the request."""

ROUTING_HEADERS = (
    DESTINATION,
    DESTINATION_SERVED,
    SUBSET_HINT,
    PREFILLER,
    ENCODERS,
    DATA_PARALLEL,
    "x-data-parallel-rank",
    KV_SOURCE,
    HANDOFF,
    "x-epp-leg",
    *PICKER_HEADERS,
    DECISION,
    DROP_REASON,
    CONFORMANCE_SELECTION,
    CONFORMANCE_SERVED,
)
"""Headers that steer a request inside the pool. A client's own copies are always removed."""

HOP_BY_HOP_HEADERS = (
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
)
"""Never set, copied or echoed (RFC 9110, section 7.6.1)."""

MAX_BODY_PIECE = 62_000
"""Bytes of body in one reply; gateways refuse larger messages (fault A01)."""
