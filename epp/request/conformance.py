"""What the Gateway API's conformance tests ask of the picker that they run with. Pure.

Only with `--conformance`: these headers let any client choose its endpoint. Otherwise they are
removed like all headers that steer a request, and mean nothing.
"""

from collections.abc import Mapping

from epp import protocol

NO_METADATA = "fail: missing envoy lb metadata"
NOT_SERVED = "fail: missing destination endpoint served metadata"


def selection(headers: Mapping[str, str]) -> tuple[str, ...] | None:
    """Endpoints that may serve this request, `ip` (all its ports) or `ip:port`; None: not said."""
    named = headers.get(protocol.CONFORMANCE_SELECTION, "").split(",")
    found = tuple(entry.strip() for entry in named if entry.strip())
    return found or None


def served_header(served: str | None) -> tuple[str, str]:
    """The header of the answer that says who served, or in the tests' words why that is not known.

    `served` is empty where the gateway's metadata came without this entry.
    """
    if served is None:
        return (protocol.CONFORMANCE_SERVED, NO_METADATA)
    return (protocol.CONFORMANCE_SERVED, served or NOT_SERVED)
