"""What is sent to an engine in place of a client's body, and which bodies may be split. Pure.

Only the members named here are touched. All else keeps its bytes: order, unknown members, duplicate
names, large integers, spellings of numbers and escapes. Whatever shapes the prompt is the same on
both legs, for the decode engine pulls KV of exactly that prompt.

Each API has limits of its own, and an engine refuses or ignores those of another. They stand at top
level, or one level down in `sampling_params`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from epp.bodies.spans import Body, NotAnObjectError


class Api(StrEnum):
    """Generative APIs whose requests can be split; every other request goes to one engine."""

    COMPLETIONS = "/v1/completions"
    CHAT = "/v1/chat/completions"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"
    GENERATE = "/inference/v1/generate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How one API limits an answer, and what a leg that wants one token must not carry."""

    limits: tuple[str, ...]
    """Members that limit the answer. Of several the last one that is set counts."""
    put: Mapping[str, bytes] = field(default_factory=dict)
    """Further members of a leg."""
    dropped: frozenset[str] = frozenset()
    """Members that a leg does not carry: refused beside one token, or of no use with it."""
    within: str | None = None
    """The member that holds limits and dropped members, where they are not at top level."""


_FOR_ONE_TOKEN = frozenset(
    {
        "min_tokens",  # more than max_tokens is refused
        "best_of",
        "logprobs",  # the prefill's token is thrown away
        "top_logprobs",  # without logprobs they are refused
    }
)
SHAPES: Mapping[Api, Shape] = {
    Api.COMPLETIONS: Shape(
        limits=("max_tokens",), put={"max_completion_tokens": b"1"}, dropped=_FOR_ONE_TOKEN
    ),
    Api.CHAT: Shape(limits=("max_tokens", "max_completion_tokens"), dropped=_FOR_ONE_TOKEN),
    Api.RESPONSES: Shape(
        limits=("max_output_tokens",),
        put={"store": b"false"},  # nobody will ever ask for the prefill's answer
        dropped=frozenset({"top_logprobs"}),
    ),
    Api.MESSAGES: Shape(limits=("max_tokens",)),
    Api.GENERATE: Shape(limits=("max_tokens",), dropped=_FOR_ONE_TOKEN, within="sampling_params"),
}

_IDS = re.compile(rb"\[\s*[0-9]")
_NULL = (None, b"null")
_TRUNCATION = "truncate_prompt_tokens"
"""vLLM cuts the prompt by what the token limit leaves, so that two limits may give two prompts."""


def api_of(path: str) -> Api | None:
    """The API behind a path without its query, or None when it is never split."""
    try:
        return Api(path)
    except ValueError:
        return None


def one_token(body: Body, api: Api, put: Mapping[str, bytes]) -> bytes:
    """The body of a leg that computes the prompt and one token, with the members `put` besides.

    It is never a stream, for a stream carries no parameters of a handoff; options of streams are
    refused without one.
    """
    shape = SHAPES[api]
    plain = {**shape.put, "stream": b"false", **put}
    if shape.within is None:
        limits = _limits(body, api, shape)
        return body.edited(put=limits | plain, drop=shape.dropped | {"stream_options"})
    inner = _inner(body, shape.within)
    assert inner is not None, "`splittable` lets no other body pass"
    limited = inner.edited(put=_limits(inner, api, shape), drop=shape.dropped)
    return body.edited(put={shape.within: limited, **plain}, drop={"stream_options"})


def with_members(body: Body, put: Mapping[str, bytes]) -> bytes:
    """The client's bytes with these members; new ones stand right before the closing brace."""
    return body.edited(put=put)


def streams(body: Body) -> bool:
    """Whether the client asked for a stream."""
    return body.value("stream") == b"true"


def splittable(body: Body, api: Api) -> str | None:
    """None, or the stable reason why this request must be computed by the decode engine alone.

    Anything but the plain spelling of a harmless value counts as harmful: vLLM reads "2" as 2.
    """
    shape = SHAPES[api]
    inner = body if shape.within is None else _inner(body, shape.within)
    if inner is None:
        return "sampling-params"
    checks = (
        ("n", inner.value("n") not in {*_NULL, b"1"}),
        ("best-of", inner.value("best_of") not in {*_NULL, b"1"}),
        ("prompts", api is Api.COMPLETIONS and not _one_prompt(body)),
        ("echo", _is_on(body, "echo")),
        ("prompt-logprobs", inner.value("prompt_logprobs") not in _NULL),
        ("beam-search", _is_on(inner, "use_beam_search")),
        ("truncation", inner.value(_TRUNCATION) not in _NULL),
        *(_response_checks(body) if api is Api.RESPONSES else ()),
        ("one-token", not _has_room(inner, shape)),
    )
    return next((reason for reason, holds in checks if holds), None)


def _response_checks(body: Body) -> tuple[tuple[str, bool], ...]:
    """What the responses API adds: state that one engine keeps, and rounds that one engine runs."""
    stored = ("previous_response_id", "conversation", "prompt")
    return (
        ("background", _is_on(body, "background")),
        ("stored", any(body.value(name) not in _NULL for name in stored)),
        ("truncation", body.value("truncation") not in {*_NULL, b'"disabled"'}),
        ("server-tools", not _only_functions(body.value("tools"))),
    )


def _limits(holder: Body, api: Api, shape: Shape) -> dict[str, bytes]:
    one_choice = "n" in holder.fields and api not in {Api.RESPONSES, Api.MESSAGES}
    return dict.fromkeys((*shape.limits, *(("n",) if one_choice else ())), b"1")


def _inner(body: Body, name: str) -> Body | None:
    """The object of this name, empty when there is none; None when it is no object."""
    text = body.value(name)
    try:
        return Body.read(b"{}" if text in _NULL or text is None else text)
    except NotAnObjectError:
        return None


def _is_on(body: Body, name: str) -> bool:
    return body.value(name) not in {*_NULL, b"false"}


class _Tool(msgspec.Struct):
    type: str


def _only_functions(text: bytes | None) -> bool:
    """Whether the client runs all of these tools: the engine's own start further rounds."""
    if text is None or text == b"null":
        return True
    try:
        return all(tool.type == "function" for tool in msgspec.json.decode(text, type=list[_Tool]))
    except msgspec.DecodeError:
        return False


def _one_prompt(body: Body) -> bool:
    """Whether the body holds exactly one prompt, as text or as token ids."""
    if body.value("prompt_embeds") not in _NULL:
        return False
    text = body.value("prompt") or b"null"
    if text.startswith(b'"'):
        return True
    if _IDS.match(text):
        return True
    try:
        items = msgspec.json.decode(text, type=list[msgspec.Raw])
    except msgspec.DecodeError:  # not a list
        return False
    return len(items) == 1


def _has_room(holder: Body, shape: Shape) -> bool:
    """Whether more than one token may be generated, so that a decode leg has something to do."""
    set_ones = [text for name in shape.limits if (text := holder.value(name)) not in _NULL]
    limit = set_ones[-1] if set_ones else None
    return limit is None or (limit.isdigit() and limit not in {b"0", b"1"})
