"""The ext_proc filter: what of a request and of its answer passes through the picker.

| shape | request | answer |
|---|---|---|
| `standalone` | headers and body | headers only (trailers if `response_trailers` is "send") |
| `full-duplex` | headers and body | headers, body, trailers: as gateways build it for a pool |
| `original-dst` | as `standalone` | as `standalone` |
| `buffered` | headers, then the body in one message | as `standalone` |
| `headers-only` | headers | headers only |
| `none` | nothing: no picker, plain round robin, to measure against | nothing |
"""

from typing import Literal

from epp import protocol

from .clusters import TYPE, Json

Shape = Literal["standalone", "full-duplex", "original-dst", "buffered", "headers-only", "none"]
Trailers = Literal["send", "skip"]

FILTER = "ext_proc"

_STREAMED = "FULL_DUPLEX_STREAMED"
_REQUEST = {
    "buffered": ("BUFFERED", "SKIP"),
    "headers-only": ("NONE", "SKIP"),
}
"""Body and trailer mode of requests, where it is not the streamed one."""


def ext_proc(shape: Shape, *, response_trailers: Trailers, fail_open: bool) -> Json:
    """The filter. One a chain, and no `mode_override`: two filters that stream bodies corrupt
    those over a few kilobytes in current Envoys (A06).

    It is off until the route says otherwise (`on`): a request that Envoy cannot parse has no route,
    and its 400 or 431 is lost when it has to wait for the picker's word first (G12)."""
    return {
        "name": FILTER,
        "disabled": True,
        "typed_config": {
            "@type": TYPE + "filters.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": {"envoy_grpc": {"cluster_name": "picker", "authority": "picker"}},
            "failure_mode_allow": fail_open,
            "status_on_error": {"code": "ServiceUnavailable"},
            "processing_mode": processing_mode(shape, response_trailers),
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


def on(picked: bool, *, pool: str | None = None) -> Json:
    """Settings of a route, or of all of a host, that ask the picker or do not. `pool`: which of
    its pools it is asked for, in words that no client can send."""
    setting: Json = {"overrides": {}} if picked else {"disabled": True}
    if picked and pool is not None:
        named = {"key": protocol.POOL_METADATA, "value": pool}
        setting["overrides"]["grpc_initial_metadata"] = [named]
    return {
        "typed_per_filter_config": {
            FILTER: {"@type": TYPE + "filters.http.ext_proc.v3.ExtProcPerRoute"} | setting
        }
    }


def processing_mode(shape: Shape, response_trailers: Trailers) -> Json:
    """What passes. Envoy refuses FULL_DUPLEX_STREAMED without trailers (A07)."""
    body, trailers = _REQUEST.get(shape, (_STREAMED, "SEND"))
    whole = shape == "full-duplex"
    return {
        "request_header_mode": "SEND",
        "request_body_mode": body,
        "request_trailer_mode": trailers,
        "response_header_mode": "SEND",
        "response_body_mode": _STREAMED if whole else "NONE",
        "response_trailer_mode": "SEND" if whole else response_trailers.upper(),
    }
