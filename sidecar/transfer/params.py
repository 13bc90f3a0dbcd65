"""`kv_transfer_params`: who may carry them, what a prefill answer must say, and their single use.

Where an engine reads them (vLLM 0.17 to 0.32): the top-level member; `vllm_xargs`, whose entries
become the engine's extra arguments; `sampling_params.extra_args` of the generate API. `extra_body`
and a bare `extra_args` are what clients write by mistake: no engine reads them there, they are
taken out all the same. Names are case-sensitive and have no alias in vLLM, so `KV_TRANSFER_PARAMS`
is an unknown member without effect, and stays. Elsewhere (tools, messages) the name is content.
Pure.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TypeVar

import msgspec

from epp.bodies.spans import Body, NotAnObjectError
from epp.errors import BadRequest, EppError

from .redaction import NAME, JsonFilter, may_name

IN_REQUESTS = frozenset({"vllm_xargs", "extra_args", "extra_body", "sampling_params"})
"""Objects in a request that may hold the parameters one level down."""

_PLAIN = {"utf-8", "utf-8-sig"}
_MAX_DEPTH = 8
T = TypeVar("T")


class Unreadable(BadRequest):
    """A body that may name the parameters and that only some parser would understand."""

    reason = "bad-body"


class UsedTwiceError(EppError):
    """Parameters of one prefill were about to be sent a second time: other KV would be pulled."""

    reason = "params-used-twice"


def cleaned(body: bytes) -> bytes:
    """A client's body without the parameters; the same object when it cannot name them.

    Costs a scan for most bodies, and a full parse (10 ms a megabyte) for those that mention the
    name. Raises Unreadable when such a body is not JSON in UTF-8: engines read UTF-16 as well.
    """
    if b"\0" not in body and not may_name(body):
        return body
    if not isinstance(_parsed(body), dict):
        return body
    content = JsonFilter(IN_REQUESTS)
    passed = content.feed(body) + content.finish()
    if _named(_parsed(passed)):  # deeper than any engine looks
        raise Unreadable("The body names kv_transfer_params where it cannot be taken out.")
    return passed


def leg_error(body: bytes) -> str | None:
    """None, or why an authenticated prefill leg must be refused.

    It carries the parameters once, at top level, asks for a remote decode and for nothing else:
    every `remote_*` member is null. Anything more could make this engine pull blocks.
    """
    try:
        content = Body.read(body)
    except NotAnObjectError:
        return "not-json"
    holders = (member for member in content.members if member.name in IN_REQUESTS)
    if any(_named(_plain(body[member.value : member.end])) for member in holders):
        return "params-nested"
    if sum(member.name == NAME for member in content.members) != 1:
        return "params-not-single"
    return _ask_error(_plain(bytes(content.fields[NAME])))


def _ask_error(given: object) -> str | None:
    """What is wrong with the parameters of a prefill leg."""
    wanted = {"do_remote_decode": True, "do_remote_prefill": False}
    if not isinstance(given, dict):
        return "params-not-an-object"
    if any(given.get(name) is not value for name, value in wanted.items()):
        return "params-pull"
    if any(value is not None for name, value in given.items() if name not in wanted):
        return "params-remote"
    return None


class Transfer:
    """Parameters that one prefill answered with. They can be taken once, in the answer's bytes."""

    __slots__ = ("_text", "host", "port")

    def __init__(self, text: bytes, host: str = "", port: int = 0) -> None:
        self._text: bytes | None = text
        self.host, self.port = host, port

    @property
    def used(self) -> bool:
        return self._text is None

    def take(self) -> bytes:
        """The value to send. Raises UsedTwiceError after the first time."""
        text, self._text = self._text, None
        if text is None:
            raise UsedTwiceError("The parameters of a prefill answer serve one decode leg.")
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillAnswer:
    """What a prefill engine's 200 says. Without `transfer`, `missing` is the stable reason."""

    transfer: Transfer | None = None
    missing: str = ""
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    """Prompt tokens that the prefill engine had cached; the decode engine's own count misleads."""


class _Params(msgspec.Struct):
    do_remote_prefill: bool
    do_remote_decode: bool
    remote_block_ids: list[list[int] | int]
    """Empty is legal: all is cached at the decode engine, which still has to be called."""
    remote_engine_id: str
    remote_request_id: str
    remote_host: str
    remote_port: int


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


def read_answer(body: bytes) -> PrefillAnswer:
    """Read the body of a prefill leg's 200. Whatever is wrong with it, the answer is a value."""
    try:
        content = Body.read(body)
    except NotAnObjectError:
        return PrefillAnswer(missing="not-json")
    usage = _lenient(content.value("usage"), _Usage) or _Usage()
    choices = _lenient(content.value("choices"), list[_Choice])
    transfer, missing = _transfer(content.value(NAME))
    return PrefillAnswer(
        transfer=transfer,
        missing=missing,
        finish_reason=choices[0].finish_reason if choices else None,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=(usage.prompt_tokens_details or _Details()).cached_tokens,
    )


def points_at_itself(host: str) -> bool:
    """Whether a decode engine on another machine would look for the blocks at home (D12)."""
    try:
        address = ip_address(host)
    except ValueError:
        return host.lower() == "localhost"
    return address.is_loopback or address.is_unspecified


def _transfer(text: bytes | None) -> tuple[Transfer | None, str]:
    if text is None or text == b"null":
        return None, "no-params"
    try:
        found = msgspec.json.decode(text, type=_Params)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None, "incomplete-params"
    names = (found.remote_engine_id, found.remote_request_id, found.remote_host)
    if not found.do_remote_prefill or found.do_remote_decode or not all(names):
        return None, "incomplete-params"
    if not 1 <= found.remote_port <= 65535:
        return None, "incomplete-params"
    return Transfer(text, found.remote_host, found.remote_port), ""


def _lenient(text: bytes | None, kind: type[T]) -> T | None:
    try:
        return None if text is None else msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _parsed(body: bytes) -> object:
    """The body as vLLM's parser reads it, if it is UTF-8."""
    if json.detect_encoding(body) not in _PLAIN:
        raise Unreadable("The body is not JSON in UTF-8.")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Unreadable("The body is not JSON.") from error


def _plain(text: bytes) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _named(found: object, depth: int = 0) -> bool:
    """Whether the parameters stand where an engine might read them."""
    if not isinstance(found, Mapping) or depth > _MAX_DEPTH:
        return False
    return NAME in found or any(_named(found.get(name), depth + 1) for name in IN_REQUESTS)
