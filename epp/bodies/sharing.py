"""Whether two engines may share the work of a request: one computes the prompt, one answers. Pure.

The picker asks before it charges an endpoint for a prompt; the sidecar asks again before it hands
over. Anything but the plain spelling of a harmless value counts as harmful: engines read "2" as 2.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum

import msgspec

from .wire import TOOLS

Value = Callable[[str], bytes | None]
"""The text of a member's value; None, or `null`, where there is none."""

NULL = b"null"
UNSET = frozenset({None, NULL})
_ONE = UNSET | {b"1"}
_OFF = UNSET | {b"false"}


class Api(StrEnum):
    """Generative APIs whose requests can be split; every other request goes to one engine."""

    COMPLETIONS = "/v1/completions"
    CHAT = "/v1/chat/completions"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"
    GENERATE = "/inference/v1/generate"


LIMITS: Mapping[Api, tuple[str, ...]] = {
    Api.COMPLETIONS: ("max_tokens",),
    Api.CHAT: ("max_tokens", "max_completion_tokens"),
    Api.RESPONSES: ("max_output_tokens",),
    Api.MESSAGES: ("max_tokens",),
    Api.GENERATE: ("max_tokens",),
}
"""Members that limit an answer. Of several the last one that is set counts."""
WITHIN: Mapping[Api, str] = {Api.GENERATE: "sampling_params"}
"""The member that holds the limits, where they are not at top level."""
STORED = ("previous_response_id", "conversation", "prompt")
"""Members of the responses API that stand for what one engine keeps."""

HARMLESS: Mapping[str, tuple[str, frozenset[bytes | None]]] = {
    "n": ("n", _ONE),
    "best_of": ("best-of", _ONE),
    "echo": ("echo", _OFF),
    "prompt_logprobs": ("prompt-logprobs", UNSET),
    "use_beam_search": ("beam-search", _OFF),
    # vLLM cuts by what the token limit leaves, so that two limits may give two prompts
    "truncate_prompt_tokens": ("truncation", UNSET),
}
"""Members whose other values need one engine for all of it, each with its word. They stand where
the limits do, but for `echo`."""


def whole(api: Api, value: Value, *, silent: bool = False) -> str | None:
    """None, or the stable reason why one engine must compute all of it.

    How many prompts a completion has is for the caller to say. `silent`: none of the members that
    `HARMLESS` names is there.
    """
    inner = _inner(api, value)
    if inner is None:
        return "sampling-params"
    for name, (reason, harmless) in {} if silent else HARMLESS.items():
        if (value if name == "echo" else inner)(name) not in harmless:
            return reason
    if api is Api.RESPONSES and (own := _response(value)):
        return own
    return None if _has_room(api, inner) else "one-token"


def _response(value: Value) -> str | None:
    """What the responses API adds: state that one engine keeps, and rounds that one engine runs."""
    if value("background") not in _OFF:
        return "background"
    if any(value(name) not in UNSET for name in STORED):
        return "stored"
    if value("truncation") not in UNSET | {b'"disabled"'}:
        return "truncation"
    return None if _only_functions(value("tools")) else "server-tools"


def _inner(api: Api, value: Value) -> Value | None:
    """Where the limits stand; None where that is no object."""
    name = WITHIN.get(api)
    if name is None:
        return value
    text = value(name)
    if text is None or text == NULL:
        return _nothing
    try:
        found = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return {key: bytes(raw) for key, raw in found.items()}.get


def _nothing(_: str) -> None:
    return None


def _has_room(api: Api, inner: Value) -> bool:
    """Whether more than one token may be generated, so that a second engine has something to do."""
    limit: bytes | None = None
    for name in LIMITS[api]:
        text = inner(name)
        if text not in UNSET:
            limit = text
    return limit is None or (limit.isdigit() and limit not in {b"0", b"1"})


def _only_functions(text: bytes | None) -> bool:
    """Whether the client runs all of these tools: the engine's own start further rounds."""
    if text is None or text == NULL:
        return True
    try:
        return all(tool.type == "function" for tool in TOOLS.decode(text))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
