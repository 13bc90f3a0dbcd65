"""Who may take part in a request at all, before any profile: by the gateway's subset, and by role.

A pod that only prefills is never a destination: it would answer, but its engine is sized and placed
for prompts, and nobody would see that the pods for decoding are gone.
"""

from collections.abc import Collection, Iterable

from epp.errors import NoEndpoint
from epp.framework import Candidates, Column, EndpointId

from .subset import allowed

_NOBODY = "failed to find endpoint candidates for serving the request"
"""The reference's words, which people look for."""


def eligible(
    ready: Candidates, subset: Iterable[str] | None, failed: Collection[EndpointId] = ()
) -> Candidates:
    """The ready endpoints that the gateway allows. Raises NoEndpoint where none of them decodes.

    Those that `failed` this very request are left out unless nobody else decodes.
    """
    if not ready:
        raise NoEndpoint(f"{_NOBODY}: no endpoint of the pool is ready; try again later")
    found = ready if subset is None else ready.keep(allowed(ready.addresses, subset), "subset")
    if not found:
        raise NoEndpoint(f"{_NOBODY}: none that the gateway allows is ready")
    if not _some(found.column("serves_decode")):
        raise NoEndpoint(f"{_NOBODY}: none that decodes is ready, only such as prefill or encode")
    if failed:
        others = found.keep([ident not in failed for ident in found.ids], "failed before")
        if others and _some(others.column("serves_decode")):
            return others
    return found


def decoders(found: Candidates) -> Candidates:
    """Those that may be a destination, in their order; endpoints without a role among them."""
    return _in_role(found, "serves_decode")


def others(found: Candidates, without: Collection[str]) -> Candidates:
    """All but those at these addresses: nobody hands a prompt over to itself."""
    return found.keep([address not in without for address in found.addresses], "destination")


def encoders(found: Candidates) -> Candidates:
    """Those that may compute media for somebody else, in their order."""
    return _in_role(found, "serves_encode")


def prefillers(found: Candidates) -> Candidates:
    """Those that may compute a prompt for somebody else, in their order."""
    return _in_role(found, "serves_prefill")


def _some(serves: Column) -> bool:
    """Whether anybody does, of one candidate at least."""
    return serves.item(serves.argmax()) > 0.0


def _in_role(found: Candidates, role: str) -> Candidates:
    """Mostly all are, which is seen sooner than who they are."""
    serves = found.column(role)
    if found and serves.item(serves.argmin()) > 0.0:
        return found
    return found.keep(serves > 0.0, "role")
