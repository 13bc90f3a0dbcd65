"""Members by which two engines may share the work of a request, as parsers read them."""

from operator import attrgetter

import msgspec

from epp.bodies import sharing
from epp.bodies.sharing import Api

from .reading import ABSENT, Body


class Generation(Body):
    """A body of an API whose requests may be split; subclasses add what is its own."""

    n: msgspec.Raw = ABSENT
    best_of: msgspec.Raw = ABSENT
    echo: msgspec.Raw = ABSENT
    prompt_logprobs: msgspec.Raw = ABSENT
    use_beam_search: msgspec.Raw = ABSENT
    truncate_prompt_tokens: msgspec.Raw = ABSENT


_named = attrgetter(*sharing.HARMLESS)
_SILENT = (ABSENT,) * len(sharing.HARMLESS)
_AT_TOP = frozenset(Api) - sharing.WITHIN.keys()


def whole(api: Api, request: Generation) -> str:
    """Why one engine must compute all of it, as a stable word; empty where two may share it."""

    def value(name: str) -> bytes | None:
        raw = getattr(request, name)
        return None if raw is ABSENT else bytes(raw)

    silent = api in _AT_TOP and _named(request) == _SILENT
    return sharing.whole(api, value, silent=silent) or ""
