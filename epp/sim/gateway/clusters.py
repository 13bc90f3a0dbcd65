"""Clusters of the standalone Envoy: the engines, and the picker."""

import ipaddress
from collections.abc import Sequence
from typing import Any

from epp import protocol
from epp.errors import ConfigError

Json = dict[str, Any]

TYPE = "type.googleapis.com/envoy.extensions."


def address(host: str, port: int) -> Json:
    return {"socket_address": {"address": host, "port_value": port}}


def _lb_endpoint(text: str) -> Json:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError("", f"endpoint {text!r} is not ip:port")
    return {"endpoint": {"address": address(host.strip("[]"), int(port))}}


def seconds(value: float) -> str:
    return f"{value:g}s"


POOL = "pool"
"""Cluster of the engines, where there is one pool."""


def pool(endpoints: Sequence[str], *, picked: bool, name: str = POOL) -> Json:
    """The engines; `picked`: the picker chooses among them, else round robin."""
    round_robin = {
        "policies": [
            {
                "typed_extension_config": {
                    "name": "round-robin",
                    "typed_config": {
                        "@type": TYPE + "load_balancing_policies.round_robin.v3.RoundRobin"
                    },
                }
            }
        ]
    }
    metadata = protocol.LB_NAMESPACE
    by_picker = {
        "policies": [
            {
                "typed_extension_config": {
                    "name": "picked",
                    "typed_config": {
                        "@type": TYPE + "load_balancing_policies.override_host.v3.OverrideHost",
                        "override_host_sources": [
                            {
                                "metadata": {
                                    "key": metadata,
                                    "path": [{"key": protocol.DESTINATION}],
                                }
                            }
                        ],
                        "selected_host_key": {
                            "key": metadata,
                            "path": [{"key": protocol.DESTINATION_SERVED}],
                        },
                        "fallback_policy": round_robin,
                    },
                }
            }
        ]
    }
    return _engines(name) | {
        "type": "STATIC",
        "load_balancing_policy": by_picker if picked else round_robin,
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [_lb_endpoint(each) for each in endpoints]}],
        },
    }


def named_pool(name: str = POOL) -> Json:
    """Whatever engine the picker names, one and not a list of them, without knowing any.

    Taken from metadata: the header of the same name would be a client's when the picker sets none.
    """
    named = {"key": protocol.LB_NAMESPACE, "path": [{"key": protocol.DESTINATION}]}
    return _engines(name) | {
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "original_dst_lb_config": {"metadata_key": named},
    }


def _engines(name: str) -> Json:
    return {
        "name": name,
        "connect_timeout": "1s",
        "per_connection_buffer_limit_bytes": 2**20,
        "circuit_breakers": _no_ceiling(),
        "typed_extension_protocol_options": _protocol(
            {"http_protocol_options": {"enable_trailers": True}}
        ),
    }


def picker(host: str, port: int, *, tls: bool, health_interval_s: float) -> Json:
    """The ext_proc server, health-checked."""
    interval = seconds(health_interval_s)
    cluster: Json = {
        "name": "picker",
        "type": "STATIC" if _is_address(host) else "STRICT_DNS",
        "connect_timeout": "1s",
        "lb_policy": "LEAST_REQUEST",
        # A picker that fails its check has no streams opened to it, so that failing open happens
        # before a body was sent, the only moment at which Envoy can.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "health_checks": [
            {
                "timeout": "1s",
                "interval": interval,
                "no_traffic_interval": interval,
                "no_traffic_healthy_interval": interval,
                "unhealthy_interval": interval,
                "unhealthy_threshold": 2,
                "healthy_threshold": 1,
                "grpc_health_check": {"service_name": protocol.EXT_PROC_SERVICE},
            }
        ],
        "circuit_breakers": _no_ceiling(),
        "load_assignment": {
            "cluster_name": "picker",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address(host, port)}}]}],
        },
        "typed_extension_protocol_options": _protocol({"http2_protocol_options": {}}),
    }
    if tls:
        cluster["transport_socket"] = {
            "name": "tls",
            "typed_config": {
                "@type": TYPE + "transport_sockets.tls.v3.UpstreamTlsContext",
                "common_tls_context": {"alpn_protocols": ["h2"]},
            },
        }
    return cluster


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _protocol(explicit: Json) -> Json:
    return {
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": TYPE + "upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": explicit,
        }
    }


def _no_ceiling() -> Json:
    """Envoy's default of 1,024 requests is a wall for answers that run for minutes (A19)."""
    ceiling = {
        "max_connections": 65_536,
        "max_pending_requests": 65_536,
        "max_requests": 65_536,
        "max_retries": 1_024,
    }
    return {"thresholds": [ceiling]}
