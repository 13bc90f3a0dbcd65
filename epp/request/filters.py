"""Who may take part in a request at all, before any profile: by the gateway's subset, and by role.

A pod that only prefills is never a destination: it would answer, but its engine is sized and placed
for prompts, and nobody would see that the pods for decoding are gone.
"""

from collections.abc import Collection, Iterable

import numpy as np

from epp.errors import NoEndpoint
from epp.framework import Candidates, EndpointId

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
    if not np.count_nonzero(found.column("serves_decode")):
        raise NoEndpoint(f"{_NOBODY}: none that decodes is ready, only such as prefill or encode")
    if failed:
        others = found.keep([ident not in failed for ident in found.ids], "failed before")
        if np.count_nonzero(others.column("serves_decode")):
            return others
    return found


def decoders(found: Candidates) -> Candidates:
    """Those that may be a destination, in their order; endpoints without a role among them."""
    return found.keep(found.column("serves_decode") > 0.0, "role")


def others(found: Candidates, without: Collection[str]) -> Candidates:
    """All but those at these addresses: nobody hands a prompt over to itself."""
    return found.keep([address not in without for address in found.addresses], "destination")


def encoders(found: Candidates) -> Candidates:
    """Those that may compute media for somebody else, in their order."""
    return found.keep(found.column("serves_encode") > 0.0, "role")


def prefillers(found: Candidates) -> Candidates:
    """Those that may compute a prompt for somebody else, in their order."""
    return found.keep(found.column("serves_prefill") > 0.0, "role")
