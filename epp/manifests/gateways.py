"""The gateways that there is an overlay for. Imports nothing else: the command line needs it."""

from typing import Literal

Gateway = Literal[
    "standalone",
    "istio",
    "istio-response-none",
    "envoy-gateway",
    "envoy-gateway-response-none",
    "kgateway",
    "gke",
]
