"""Read a JSON body as far as a decision needs it: what every parser shares.

The rest of a body is skipped and passes byte for byte. What is not a JSON object is refused with
400, and so is a model that is not a string, or missing where the API needs one (faults A08, A11).
Everything else is the engine's to judge.
"""

import json
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from epp.bodies.sharing import NULL
from epp.errors import BadRequest

from .prompt import Parsed

NOT_JSON = "error unmarshaling request bodyMap: "
"""How the reference picker begins when a body is no JSON object; clients look for it."""
SEND = "send a JSON object with a `model`"
NO_MODEL = "model not found in request body: send a `model` that is a string and not empty"

ABSENT = msgspec.Raw(NULL)
ODD_TEXT = "odd text"

_T = TypeVar("_T")
_B = TypeVar("_B", bound="Body")

_limit = msgspec.json.Decoder(int)
_text = msgspec.json.Decoder(str)


class Body(msgspec.Struct):
    """Members that a parser wants are added by subclasses, undecoded: their shape may be any."""

    model: str | None = None
    cache_salt: msgspec.Raw = ABSENT


def read(decoder: "msgspec.json.Decoder[_B]", body: bytes, *, nameless: bool = False) -> _B | None:
    """The members that a parser wants; None for what `odd` is to judge. Raises BadRequest.

    `nameless`: the API takes a body without a model, and the engine then uses its own.
    """
    try:
        request = decoder.decode(body)
    except msgspec.ValidationError:
        raise BadRequest(
            NO_MODEL if _is_object(body) else f"{NOT_JSON}not an object; {SEND}"
        ) from None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    except RecursionError:
        raise BadRequest(f"{NOT_JSON}nested too deeply; {SEND}") from None
    if not request.model and not nameless:
        raise BadRequest(NO_MODEL)
    return request


def odd(api: str, path: str, body: bytes, *, nameless: bool = False) -> Parsed:
    """JSON that the fast decoder refuses: half of a surrogate pair, which browsers do send.

    It passes unscored, for the engine to judge. Raises BadRequest where it is no JSON at all.
    """
    try:
        decoded = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise BadRequest(f"{NOT_JSON}not valid JSON; {SEND}") from None
    if not isinstance(decoded, dict):
        raise BadRequest(f"{NOT_JSON}not an object; {SEND}")
    model = decoded.get("model")
    if model is None and nameless:
        model = ""
    if not isinstance(model, str) or not (model or nameless):
        raise BadRequest(NO_MODEL)
    printable = model.encode("utf-8", "replace").decode()
    return Parsed(api=api, path=path, model=printable, unscored=ODD_TEXT, whole="odd-text")


def given(raw: msgspec.Raw) -> bool:
    """Whether the member is there and not null."""
    return bytes(raw) != NULL


def present(request: Body, names: Sequence[str]) -> tuple[tuple[str, bytes], ...]:
    """Name and text of those of these members that are given."""
    return tuple((name, bytes(raw)) for name in names if given(raw := getattr(request, name)))


def salt(request: Body) -> str:
    """The cache salt; a wrong one is ignored."""
    return decoded_or_none(_text, request.cache_salt) or ""


def first_limit(*raws: msgspec.Raw) -> int | None:
    """The first usable limit of the answer's tokens; the engine answers for unusable ones."""
    for raw in raws:
        limit = decoded_or_none(_limit, raw)
        if limit is not None and limit > 0:
            return limit
    return None


def decoded_or_none(decoder: "msgspec.json.Decoder[_T]", raw: msgspec.Raw) -> _T | None:
    """The value of a member, or None where it is not given or has another shape."""
    if raw is ABSENT:
        return None
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _is_object(body: bytes) -> bool:
    return body.lstrip()[:1] == b"{"


def _no_constant(name: str) -> None:
    raise ValueError(name)
