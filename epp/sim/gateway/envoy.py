"""Write the bootstrap of a standalone Envoy in front of the picker.

Shapes, by what passes through the picker:

| shape | request | answer |
|---|---|---|
| `standalone` | headers and body | headers only (trailers if `response_trailers` is "send") |
| `full-duplex` | headers and body | headers, body, trailers: as gateways build it for a pool |
| `headers-only` | headers | headers only |
| `none` | nothing: no picker, plain round robin, to measure against | nothing |

The destination comes from the picker's dynamic metadata, never from a header that a client could
send; clients' own routing headers are removed before any filter sees them, so they do not survive
even when the picker is down and the gateway fails open. A destination that refuses the connection,
or answers 503, is skipped: Envoy retries down the list and then round robin, always before the
first byte of an answer. Envoy needs no root: it listens where it is told and writes one log.

Envoy 1.40 sends a streamed request body twice when the request ends in trailers and its route has
a retry policy (envoyproxy/envoy#45470). So where there are retries, trailers of HTTP/1.1 are
dropped, and a request that declares trailers is not retried. What remains is an HTTP/2 client that
sends trailers without declaring them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from epp import protocol

from .clusters import TYPE, Json, address, picker, pool, seconds

Shape = Literal["standalone", "full-duplex", "headers-only", "none"]
_DAY_S = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvoySettings:
    """What a bootstrap depends on."""

    listen_port: int
    admin_port: int
    ext_proc_port: int
    endpoints: Sequence[str]
    """`ip:port`, IPv6 in brackets: everything that may ever be chosen."""
    tls: bool = True
    """TLS to the picker; its certificate is not verified."""
    shape: Shape = "standalone"
    response_trailers: Literal["send", "skip"] = "skip"
    """With "send" a picker that dies cuts running answers, in exchange for seeing their end."""
    listen_host: str = "127.0.0.1"
    ext_proc_host: str = "127.0.0.1"
    access_log: Path | None = None
    """File for one JSON line a request; None: no log."""
    fail_open: bool = False
    """Whether requests pass unrouted when the picker is down."""
    health_interval_s: float = 1.0
    """Between health checks of the picker."""
    retries: bool = True
    """Whether a request goes elsewhere when its destination refuses it. Without, trailers of
    HTTP/1.1 pass."""
    retry_buffer_bytes: int = 16 * 2**20
    """Requests with larger bodies are not retried elsewhere."""
    idle_timeout_s: float = 900.0
    """A request on which no byte moves for so long is ended: longer than the longest prefill, and
    the bound for a picker that hangs, which `message_timeout` is not in FULL_DUPLEX_STREAMED."""


def command(binary: Path, config: Path, *, concurrency: int = 1) -> list[str]:
    """How to start it. `concurrency` is Envoy's number of worker threads: each opens its own
    connection to the picker, and its default of one per core only pays on a busy machine."""
    return [
        str(binary),
        "--config-path",
        str(config),
        "--concurrency",
        str(concurrency),
        "--disable-hot-restart",
        "--log-level",
        "warning",
    ]


def render(settings: EnvoySettings) -> str:
    """The bootstrap as JSON. Raises ConfigError for an endpoint that is not `ip:port`."""
    clusters = [pool(settings.endpoints, picked=settings.shape != "none")]
    if settings.shape != "none":
        clusters.append(
            picker(
                settings.ext_proc_host,
                settings.ext_proc_port,
                tls=settings.tls,
                health_interval_s=settings.health_interval_s,
            )
        )
    bootstrap = {
        "admin": {"address": address("127.0.0.1", settings.admin_port)},
        "static_resources": {"listeners": [_listener(settings)], "clusters": clusters},
        "overload_manager": {
            "resource_monitors": [
                {
                    "name": "envoy.resource_monitors.global_downstream_max_connections",
                    "typed_config": {
                        "@type": TYPE + "resource_monitors.downstream_connections.v3"
                        ".DownstreamConnectionsConfig",
                        "max_active_downstream_connections": 50_000,
                    },
                }
            ]
        },
    }
    return json.dumps(bootstrap, indent=1) + "\n"


def _listener(settings: EnvoySettings) -> Json:
    manager = {
        "@type": TYPE + "filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "gateway",
        "codec_type": "AUTO",
        "http_protocol_options": {"enable_trailers": not settings.retries},
        "use_remote_address": True,
        "preserve_external_request_id": True,
        "normalize_path": True,
        "merge_slashes": True,
        "early_header_mutation_extensions": [
            {
                "name": "remove-routing-headers",
                "typed_config": {
                    "@type": TYPE + "http.early_header_mutation.header_mutation.v3.HeaderMutation",
                    "mutations": [{"remove": name} for name in protocol.ROUTING_HEADERS],
                },
            }
        ],
        "stream_idle_timeout": seconds(settings.idle_timeout_s),
        "request_headers_timeout": "30s",
        "route_config": _routes(settings),
        "http_filters": _filters(settings),
        **({"access_log": [_access_log(settings.access_log)]} if settings.access_log else {}),
    }
    chain = {"filters": [{"name": "http", "typed_config": manager}]}
    return {
        "name": "gateway",
        "address": address(settings.listen_host, settings.listen_port),
        "per_connection_buffer_limit_bytes": 2**20,
        "filter_chains": [chain],
    }


def _routes(settings: EnvoySettings) -> Json:
    # Answers run as long as they need; stream_idle_timeout bounds silence.
    action = {"cluster": "pool", "timeout": seconds(_DAY_S)}
    plain = {"match": {"prefix": "/"}, "route": action}
    routes: list[Json] = [plain]
    if settings.retries:
        declared = {"prefix": "/", "headers": [{"name": "trailer", "present_match": True}]}
        retried = plain | {
            "route": action | {"retry_policy": _retries()},
            "request_body_buffer_limit": settings.retry_buffer_bytes,
        }
        routes = [plain | {"match": declared}, retried]
    host = {"name": "all", "domains": ["*"], "routes": routes}
    return {"name": "routes", "virtual_hosts": [host]}


def _retries() -> Json:
    """Only what happens before the destination has taken the request: it refuses the connection,
    or says 503 by itself (an engine that is down behind its sidecar)."""
    return {
        "retry_on": "connect-failure,refused-stream,reset-before-request,retriable-status-codes",
        "retriable_status_codes": [503],
        "num_retries": 3,
        "retry_host_predicate": [
            {
                "name": "previous-hosts",
                "typed_config": {
                    "@type": TYPE + "retry.host.previous_hosts.v3.PreviousHostsPredicate"
                },
            }
        ],
        "host_selection_retry_max_attempts": 5,
        "retry_back_off": {"base_interval": "0.005s", "max_interval": "0.05s"},
    }


def _filters(settings: EnvoySettings) -> list[Json]:
    router = {
        "name": "router",
        "typed_config": {"@type": TYPE + "filters.http.router.v3.Router"},
    }
    return [router] if settings.shape == "none" else [_ext_proc(settings), router]


def _ext_proc(settings: EnvoySettings) -> Json:
    return {
        "name": "ext_proc",
        "typed_config": {
            "@type": TYPE + "filters.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": {"envoy_grpc": {"cluster_name": "picker", "authority": "picker"}},
            "failure_mode_allow": settings.fail_open,
            "status_on_error": {"code": "ServiceUnavailable"},
            "processing_mode": _processing_mode(settings),
            # Not enforced in FULL_DUPLEX_STREAMED; the picker has its own deadline.
            "message_timeout": "30s",
            "metadata_options": {
                "receiving_namespaces": {"untyped": [protocol.LB_NAMESPACE]},
                "forwarding_namespaces": {
                    "untyped": [protocol.LB_NAMESPACE, protocol.SUBSET_NAMESPACE]
                },
            },
        },
    }


def _processing_mode(settings: EnvoySettings) -> Json:
    trailers = settings.response_trailers.upper()
    streamed = "FULL_DUPLEX_STREAMED"
    mode = {"request_header_mode": "SEND", "response_header_mode": "SEND"}
    if settings.shape == "headers-only":
        return mode | {
            "request_body_mode": "NONE",
            "request_trailer_mode": "SKIP",
            "response_body_mode": "NONE",
            "response_trailer_mode": trailers,
        }
    mode |= {"request_body_mode": streamed, "request_trailer_mode": "SEND"}
    if settings.shape == "full-duplex":
        return mode | {"response_body_mode": streamed, "response_trailer_mode": "SEND"}
    return mode | {"response_body_mode": "NONE", "response_trailer_mode": trailers}


def _access_log(path: Path) -> Json:
    metadata = f"%DYNAMIC_METADATA({protocol.LB_NAMESPACE}:"
    return {
        "name": "file",
        "typed_config": {
            "@type": TYPE + "access_loggers.file.v3.FileAccessLog",
            "path": str(path),
            "log_format": {
                "json_format": {
                    "time": "%START_TIME%",
                    "request_id": "%REQ(X-REQUEST-ID)%",
                    "method": "%REQ(:METHOD)%",
                    "path": "%PATH(NQ)%",
                    "status": "%RESPONSE_CODE%",
                    "details": "%RESPONSE_CODE_DETAILS%",
                    "flags": "%RESPONSE_FLAGS%",
                    "picked": f"{metadata}{protocol.DESTINATION})%",
                    "served": "%UPSTREAM_HOST%",
                    "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
                    "ms": "%DURATION%",
                    "first_byte_ms": "%RESPONSE_DURATION%",
                    "bytes_in": "%BYTES_RECEIVED%",
                    "bytes_out": "%BYTES_SENT%",
                }
            },
        },
    }
