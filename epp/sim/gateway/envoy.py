"""Write the bootstrap of a standalone Envoy in front of the picker.

`modes.Shape` names the shapes: what passes through the picker, and who finds the destination.
It comes from the picker's dynamic metadata, never from a header that a client could send; clients'
own routing headers are removed before any filter sees them, so they do not survive even when the
picker is down and the gateway fails open. A destination that refuses the connection, or answers
503, is skipped: Envoy retries down the list and then round robin, always before the first byte of
an answer (`original-dst` knows one destination only, so nothing is tried elsewhere). Envoy needs
no root: it listens where it is told and writes one log.

Envoy 1.40 sends a streamed request body twice when the request ends in trailers and its route has
a retry policy (envoyproxy/envoy#45470). So where there are retries, trailers of HTTP/1.1 are
dropped, and a request that declares trailers is not retried. What remains is an HTTP/2 client that
sends trailers without declaring them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from epp import protocol

from . import refusals
from .clusters import POOL, TYPE, Json, address, named_pool, picker, pool, seconds
from .modes import Shape, Trailers, ext_proc
from .routes import API_PATHS, REGEX_LIMIT, RoutedPool, routes

_BUFFER_BYTES = 2**20
"""What a connection may hold before its sender has to wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvoySettings:
    """What a bootstrap depends on."""

    listen_port: int
    admin_port: int
    ext_proc_port: int
    endpoints: Sequence[str]
    """`ip:port`, IPv6 in brackets: everything that may ever be chosen. `original-dst` needs none:
    it connects to whatever the picker names."""
    pools: Sequence[RoutedPool] = ()
    """Several pools instead, chosen by the host that clients ask for."""
    tls: bool = True
    """TLS to the picker; its certificate is not verified."""
    shape: Shape = "standalone"
    response_trailers: Trailers = "skip"
    """With "send" a picker that dies cuts running answers, in exchange for seeing their end."""
    listen_host: str = "127.0.0.1"
    ext_proc_host: str = "127.0.0.1"
    """An address, or a name that is looked up again and again."""
    api_paths: Sequence[str] = API_PATHS
    """What clients may call, each with everything under it; others get 404. `routes.EVERY_PATH`
    lets all pass, pages of the engine that stop it included."""
    access_log: Path | None = None
    """File for one JSON line a request; None: no log."""
    fail_open: bool = False
    """Whether requests pass unrouted when the picker is down."""
    body_limit_bytes: int = 10 * 2**20 + 2**19
    """Largest body of a request in the shape `buffered`, where Envoy holds it whole: between the
    picker's `--max-request-bytes` and its largest message, a mebibyte more. So the picker refuses
    what it can in its own words, and no message is too large for it, which would be a 503."""
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
    """The bootstrap as JSON. Raises ConfigError for an endpoint that is not `ip:port`, and for a
    path that is none."""
    clusters = _pools(settings)
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
        "layered_runtime": {"layers": [{"name": "paths", "static_layer": REGEX_LIMIT}]},
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


def _pools(settings: EnvoySettings) -> list[Json]:
    """The engines."""
    members = {each.cluster: each.endpoints for each in settings.pools} or {
        POOL: settings.endpoints
    }
    if settings.shape == "original-dst":
        return [named_pool(name) for name in members]
    picked = settings.shape != "none"
    return [pool(each, picked=picked, name=name) for name, each in members.items()]


def _listener(settings: EnvoySettings) -> Json:
    manager = {
        "@type": TYPE + "filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "gateway",
        "codec_type": "AUTO",
        "http_protocol_options": {"enable_trailers": not _retries(settings)},
        "use_remote_address": True,
        "preserve_external_request_id": True,
        "always_set_request_id_in_response": True,  # what `epp explain` is asked with
        "normalize_path": True,
        "merge_slashes": True,
        # An engine would see another path than the one that was compared with the list.
        "path_with_escaped_slashes_action": "REJECT_REQUEST",
        "early_header_mutation_extensions": [
            {
                "name": "remove-routing-headers",
                "typed_config": {
                    "@type": TYPE + "http.early_header_mutation.header_mutation.v3.HeaderMutation",
                    "mutations": [{"remove": name} for name in protocol.ROUTING_HEADERS],
                },
            }
        ],
        "local_reply_config": {"mappers": refusals.mappers()},
        "stream_idle_timeout": seconds(settings.idle_timeout_s),
        "request_headers_timeout": "30s",
        "route_config": routes(
            settings.api_paths,
            picked=settings.shape != "none",
            pools=settings.pools,
            retry_limit_bytes=settings.retry_buffer_bytes if _retries(settings) else None,
            body_limit_bytes=settings.body_limit_bytes if settings.shape == "buffered" else None,
        ),
        "http_filters": _filters(settings),
        **({"access_log": [_access_log(settings.access_log)]} if settings.access_log else {}),
    }
    chain = {"filters": [{"name": "http", "typed_config": manager}]}
    return {
        "name": "gateway",
        "address": address(settings.listen_host, settings.listen_port),
        "per_connection_buffer_limit_bytes": _BUFFER_BYTES,
        "filter_chains": [chain],
    }


def _retries(settings: EnvoySettings) -> bool:
    return settings.retries and settings.shape != "original-dst"


def _filters(settings: EnvoySettings) -> list[Json]:
    router = {
        "name": "router",
        "typed_config": {"@type": TYPE + "filters.http.router.v3.Router"},
    }
    if settings.shape == "none":
        return [router]
    picking = ext_proc(
        settings.shape,
        response_trailers=settings.response_trailers,
        fail_open=settings.fail_open,
    )
    return [picking, router]


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
