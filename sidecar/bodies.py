"""What is sent to an engine in place of a client's body. Pure.

Only the members named here are touched. All else keeps its bytes: order, unknown members, duplicate
names, large integers, spellings of numbers and escapes. Whatever shapes the prompt is the same on
both legs, for the decode engine pulls KV of exactly that prompt.

Each API has limits of its own, and an engine refuses or ignores those of another
(`epp.bodies.sharing`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from epp.bodies.sharing import HARMLESS, LIMITS, UNSET, WITHIN, Api, whole
from epp.bodies.spans import Body


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a leg that wants one token must carry or leave out, besides the limits of its API."""

    put: Mapping[str, bytes] = field(default_factory=dict)
    """Further members of a leg."""
    dropped: frozenset[str] = frozenset()
    """Members that a leg does not carry: refused beside one token, or of no use with it. They
    stand where the limits do."""


_FOR_ONE_TOKEN = frozenset(
    {
        "min_tokens",  # more than max_tokens is refused
        "best_of",
        "logprobs",  # the prefill's token is thrown away
        "top_logprobs",  # without logprobs they are refused
    }
)
SHAPES: Mapping[Api, Shape] = {
    Api.COMPLETIONS: Shape(put={"max_completion_tokens": b"1"}, dropped=_FOR_ONE_TOKEN),
    Api.CHAT: Shape(dropped=_FOR_ONE_TOKEN),
    Api.RESPONSES: Shape(
        put={"store": b"false"},  # nobody will ever ask for the prefill's answer
        dropped=frozenset({"top_logprobs"}),
    ),
    Api.MESSAGES: Shape(),
    Api.GENERATE: Shape(dropped=_FOR_ONE_TOKEN),
}

_DROPPED = {api: shape.dropped | {"stream_options"} for api, shape in SHAPES.items()}
_BY_PATH = {api.value: api for api in Api}
_IDS = re.compile(rb"\[\s*[0-9]")


def api_of(path: str) -> Api | None:
    """The API behind a path without its query, or None when it is never split."""
    return _BY_PATH.get(path)


def one_token(body: Body, api: Api, put: Mapping[str, bytes]) -> bytes:
    """The body of a leg that computes the prompt and one token, with the members `put` besides.

    It is never a stream, for a stream carries no parameters of a handoff; options of streams are
    refused without one.
    """
    shape, within = SHAPES[api], WITHIN.get(api)
    plain = {**shape.put, "stream": b"false", **put}
    if within is None:
        limits = _limits(body, api)
        return body.edited(put=limits | plain, drop=_DROPPED[api])
    text = body.value(within)
    inner = Body.read(b"{}" if text is None or text in UNSET else text)  # `splittable` has looked
    limited = inner.edited(put=_limits(inner, api), drop=shape.dropped)
    return body.edited(put={within: limited, **plain}, drop={"stream_options"})


def with_members(body: Body, put: Mapping[str, bytes]) -> bytes:
    """The client's bytes with these members; new ones stand right before the closing brace."""
    return body.edited(put=put)


def streams(body: Body) -> bool:
    """Whether the client asked for a stream."""
    return body.value("stream") == b"true"


def splittable(body: Body, api: Api) -> str | None:
    """None, or the stable reason why this request must be computed by the decode engine alone."""
    silent = api not in WITHIN and body.fields.keys().isdisjoint(HARMLESS)
    reason = whole(api, body.value, silent=silent)
    if reason is None and api is Api.COMPLETIONS and not _one_prompt(body):
        return "prompts"
    return reason


def _limits(holder: Body, api: Api) -> dict[str, bytes]:
    one_choice = "n" in holder.fields and api not in {Api.RESPONSES, Api.MESSAGES}
    return dict.fromkeys((*LIMITS[api], *(("n",) if one_choice else ())), b"1")


def _one_prompt(body: Body) -> bool:
    """Whether the body holds exactly one prompt, as text or as token ids."""
    if body.value("prompt_embeds") not in UNSET:
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
