"""Who may take which part of a request: by the gateway's subset, and by role. Pure.

A pod that only prefills is never a destination: it would answer, but its engine is sized and placed
for prompts, and nobody would see that the pods for decoding are gone.
"""

from collections.abc import Collection, Iterable, Sequence

from epp.errors import NoEndpoint
from epp.framework import Endpoint, EndpointId

from .subset import allowed

_NOBODY = "failed to find endpoint candidates for serving the request"
"""The reference's words, which people look for."""


def eligible(ready: Sequence[Endpoint], subset: Iterable[str] | None) -> list[Endpoint]:
    """The ready endpoints that the gateway allows. Raises NoEndpoint where none of them decodes."""
    if not ready:
        raise NoEndpoint(f"{_NOBODY}: no endpoint of the pool is ready; try again later")
    found = allowed(ready, subset)
    if not found:
        raise NoEndpoint(f"{_NOBODY}: none that the gateway allows is ready")
    if not any(endpoint.role.serves_decode for endpoint in found):
        raise NoEndpoint(f"{_NOBODY}: none that decodes is ready, only such as prefill or encode")
    return found


def decoders(endpoints: Sequence[Endpoint]) -> list[Endpoint]:
    """Those that may be a destination, in their order; endpoints without a role among them."""
    return [endpoint for endpoint in endpoints if endpoint.role.serves_decode]


def prefillers(
    endpoints: Sequence[Endpoint], without: Collection[EndpointId] = ()
) -> list[Endpoint]:
    """Those that may compute a prompt for somebody else, in their order.

    `without`: the destinations of the same request; nobody hands a prompt over to itself.
    """
    return [
        endpoint
        for endpoint in endpoints
        if endpoint.role.serves_prefill and endpoint.id not in without
    ]
