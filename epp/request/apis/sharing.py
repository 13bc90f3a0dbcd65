"""Whether two engines may share the work of a request: one computes the prompt, one answers.

The picker's word is a first sieve, so that no endpoint is charged for a prompt that never comes;
the sidecar looks again before it hands over. Anything but the plain spelling of a harmless value
counts as harmful: engines read "2" as 2.
"""

from collections.abc import Mapping

import msgspec

NULL = b"null"

_UNSET = frozenset({NULL})
_ONE = frozenset({NULL, b"1"})
_OFF = frozenset({NULL, b"false"})

HARMLESS = {
    "n": ("n", _ONE),
    "best_of": ("best-of", _ONE),
    "echo": ("echo", _OFF),
    "prompt_logprobs": ("prompt-logprobs", _UNSET),
    "use_beam_search": ("beam-search", _OFF),
    "truncate_prompt_tokens": ("truncation", _UNSET),
}
"""Members whose other values need one engine for all of it, each with its word."""


def whole(members: Mapping[str, msgspec.Raw], limit: bytes) -> str:
    """Why one engine must compute all of it, as a stable word; empty where two may share it.

    `members`: those of `HARMLESS`, null where absent. `limit`: the answer's limit as it stands in
    the body; with one token nothing is left for a second engine.
    """
    for name, (word, harmless) in HARMLESS.items():
        if bytes(members[name]) not in harmless:
            return word
    if limit != NULL and (not limit.isdigit() or limit in {b"0", b"1"}):
        return "one-token"
    return ""
