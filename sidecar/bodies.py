"""What is sent to an engine in place of a client's body, and which bodies may be split. Pure.

Only the members named here are touched. All else keeps its bytes: order, unknown members, duplicate
names, large integers, spellings of numbers and escapes. Whatever shapes the prompt is the same on
both legs, for the decode engine pulls KV of exactly that prompt.
"""

import re
from enum import StrEnum

import msgspec

from epp.bodies.spans import Body


class Api(StrEnum):
    """Generative APIs whose requests can be split; every other request goes to one engine."""

    COMPLETIONS = "/v1/completions"
    CHAT = "/v1/chat/completions"


ONE_TOKEN = {
    "max_tokens": b"1",
    "max_completion_tokens": b"1",  # where chat has both, this one counts
    "stream": b"false",  # a stream never carries the parameters of a handoff
}
DROPPED = frozenset(
    {
        "min_tokens",  # more than max_tokens is refused
        "stream_options",  # without a stream they are refused
        "best_of",
        "logprobs",  # the prefill's token is thrown away
        "top_logprobs",  # without logprobs they are refused
    }
)
"""Members that a prefill leg does not carry."""

_IDS = re.compile(rb"\[\s*[0-9]")
_TRUNCATION = "truncate_prompt_tokens"
"""vLLM cuts the prompt by what the token limit leaves, so that two limits may give two prompts."""


def api_of(path: str) -> Api | None:
    """The API behind a path without its query, or None when it is never split."""
    try:
        return Api(path)
    except ValueError:
        return None


def one_token(body: Body, put: dict[str, bytes]) -> bytes:
    """The body of a leg that computes the prompt and one token, with the members `put` besides."""
    one_choice = {"n": b"1"} if "n" in body.fields else {}
    return body.edited(put=ONE_TOKEN | one_choice | put, drop=DROPPED)


def with_member(body: Body, name: str, value: bytes) -> bytes:
    """The client's bytes with one member more, right before the closing brace."""
    return body.edited(put={name: value})


def streams(body: Body) -> bool:
    """Whether the client asked for a stream."""
    return body.value("stream") == b"true"


def splittable(body: Body, api: Api) -> str | None:
    """None, or the stable reason why this request must be computed by the decode engine alone.

    Anything but the plain spelling of a harmless value counts as harmful: vLLM reads "2" as 2.
    """
    checks = (
        ("n", body.value("n") not in {None, b"null", b"1"}),
        ("best-of", body.value("best_of") not in {None, b"null", b"1"}),
        ("prompts", api is Api.COMPLETIONS and not _one_prompt(body)),
        ("echo", _is_on(body, "echo")),
        ("prompt-logprobs", body.value("prompt_logprobs") not in {None, b"null"}),
        ("beam-search", _is_on(body, "use_beam_search")),
        ("truncation", body.value(_TRUNCATION) not in {None, b"null"}),
        ("one-token", not _has_room(body, api)),
    )
    return next((reason for reason, holds in checks if holds), None)


def _is_on(body: Body, name: str) -> bool:
    return body.value(name) not in {None, b"null", b"false"}


def _one_prompt(body: Body) -> bool:
    """Whether the body holds exactly one prompt, as text or as token ids."""
    if body.value("prompt_embeds") not in {None, b"null"}:
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


def _has_room(body: Body, api: Api) -> bool:
    """Whether more than one token may be generated, so that a decode leg has something to do."""
    limit = body.value("max_completion_tokens") if api is Api.CHAT else None
    if limit in {None, b"null"}:
        limit = body.value("max_tokens")
    if limit is None or limit == b"null":
        return True
    return limit.isdigit() and limit not in {b"0", b"1"}
