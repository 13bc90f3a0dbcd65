"""Parameters of handoffs: who may carry them, what a prefill answer must say, and their single use.

`kv_transfer_params` of vLLM stand for all of them here. Where an engine reads them (vLLM 0.17 to
0.32): the top-level member; `vllm_xargs`, whose entries become the engine's extra arguments;
`sampling_params.extra_args` of the generate API. `extra_body` and a bare `extra_args` are what
clients write by mistake: no engine reads them there, they are taken out all the same.
`ec_transfer_params` go the same ways; SGLang reads its bootstrap members at top level only. Names
are case-sensitive and have no alias, so `KV_TRANSFER_PARAMS` is an unknown member without effect,
and stays. Elsewhere (tools, messages) the name is content. Pure.
"""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address

import msgspec

from epp.bodies.spans import Body, NotAnObjectError
from epp.bodies.usage import ResponseWatch, of_prompt
from epp.errors import BadRequest, EppError
from sidecar.wire import FINISHED, PARAMS, PREFILLED, Prefilled

from .redaction import BOOTSTRAP, IN_REQUEST_NAMES, MEDIA_NAME, NAME, JsonFilter, may_name

IN_REQUESTS = frozenset({"vllm_xargs", "extra_args", "extra_body", "sampling_params"})
"""Objects in a request that may hold the parameters one level down."""

_NOT_JSON = "not-json"
MISADDRESSED = "misaddressed"
UNPAIRED = "unpaired"
"""A prefill leg that was answered although no decode leg was sent along."""

_PLAIN = {"utf-8", "utf-8-sig"}
_MAX_DEPTH = 8


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
    content = JsonFilter(IN_REQUESTS, IN_REQUEST_NAMES)
    passed = content.feed(body) + content.finish()
    if _named(_parsed(passed)):  # deeper than any engine looks
        raise Unreadable("The body names parameters of a handoff where they cannot be taken out.")
    return passed


def leg_error(body: bytes, ask_error: Callable[[object], str | None]) -> str | None:
    """None, or why an authenticated prefill leg must be refused.

    It carries `kv_transfer_params` once, at top level, and in them what `ask_error` lets pass; no
    other parameters. Anything more could make this engine pull blocks.
    """
    return _members_error(body, (NAME,)) or ask_error(_value(body, NAME))


def room_error(body: bytes) -> str | None:
    """The same for a leg that names a room in which SGLang's engines meet."""
    error = _members_error(body, BOOTSTRAP)
    if error is not None:
        return error
    host, port, room = (_value(body, name) for name in BOOTSTRAP)
    good = isinstance(host, str) and host and type(port) is int and type(room) is int
    return None if good else "params-no-room"


def bare_error(body: bytes) -> str | None:
    """The same for a leg that carries no parameters at all."""
    return _members_error(body, ())


def _members_error(body: bytes, names: Collection[str]) -> str | None:
    """None when these members stand in the body once each, and no others of handoffs anywhere.

    What an encoder said of the prompt's media may stand beside them: it shapes the prompt.
    """
    content = _object(body)
    if content is None:
        return _NOT_JSON
    holders = (member for member in content.members if member.name in IN_REQUESTS)
    if any(_named(_plain(body[member.value : member.end])) for member in holders):
        return "params-nested"
    watched = IN_REQUEST_NAMES - {MEDIA_NAME}
    found = sorted(member.name for member in content.members if member.name in watched)
    return None if found == sorted(names) else "params-not-single"


def _value(body: bytes, name: str) -> object:
    return _plain(bytes(Body.read(body).fields[name]))


def ask_error(given: object) -> str | None:
    """What is wrong with NIXL's parameters of a prefill leg: it asks for a remote decode, and every
    `remote_*` member is null."""
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

    __slots__ = ("_text", "host", "leased", "port")

    def __init__(self, text: bytes, host: str = "", port: int = 0, *, leased: bool = True) -> None:
        self._text: bytes | None = text
        self.host, self.port = host, port
        self.leased = leased
        """Whether another engine keeps blocks until they are pulled, for the time of a lease."""

    @property
    def used(self) -> bool:
        return self._text is None

    def take(self) -> bytes:
        """The value to send. Raises UsedTwiceError after the first time."""
        text, self._text = self._text, None
        if text is None:
            raise UsedTwiceError("The parameters of a prefill answer serve one decode leg.")
        return text


@dataclass(slots=True, kw_only=True)
class PrefillAnswer:
    """What a prefill engine's 200 says. Without `transfer`, `missing` is the stable reason. Never
    changed once it is made."""

    transfer: Transfer | None = None
    missing: str = ""
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    """Prompt tokens that the prefill engine had cached; the decode engine's own count misleads."""


def read_answer(body: bytes) -> PrefillAnswer:
    """Read the body of a prefill leg's 200. Whatever is wrong with it, the answer is a value."""
    told = _told(body)
    if told is None:
        return PrefillAnswer(missing=_NOT_JSON)
    text = told.kv_transfer_params
    transfer, missing = _transfer(None if text is msgspec.UNSET else bytes(text))
    return _about(body, told, transfer, missing)


def read_bare(body: bytes) -> PrefillAnswer:
    """The same for an engine whose answer offers nothing by itself; never with a transfer."""
    told = _told(body)
    return PrefillAnswer(missing=_NOT_JSON) if told is None else _about(body, told)


def _told(body: bytes) -> Prefilled | None:
    try:
        return PREFILLED.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _object(body: bytes) -> Body | None:
    try:
        return Body.read(body)
    except NotAnObjectError:
        return None


def _about(
    body: bytes, told: Prefilled, transfer: "Transfer | None" = None, missing: str = ""
) -> PrefillAnswer:
    """What an answer says of its prompt, as far as it can be read."""
    if isinstance(told.usage, dict):
        prompt, cached = of_prompt(told.usage)
    else:  # it may stand further down
        watch = ResponseWatch("application/json")
        watch.feed(body)
        usage = watch.finish()
        prompt, cached = usage.prompt_tokens, usage.cached_tokens
    return PrefillAnswer(
        transfer=transfer,
        missing=missing,
        finish_reason=_finish_reason(told.choices),
        prompt_tokens=prompt,
        cached_tokens=cached,
    )


def _finish_reason(text: msgspec.Raw | msgspec.UnsetType) -> str | None:
    try:
        choices = [] if text is msgspec.UNSET else FINISHED.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return choices[0].finish_reason if choices else None


@lru_cache(maxsize=1024)
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
        found = PARAMS.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None, "incomplete-params"
    names = (found.remote_engine_id, found.remote_request_id, found.remote_host)
    if not found.do_remote_prefill or found.do_remote_decode or not all(names):
        return None, "incomplete-params"
    if not 1 <= found.remote_port <= 65535:
        return None, "incomplete-params"
    return Transfer(text, found.remote_host, found.remote_port), ""


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
    return not IN_REQUEST_NAMES.isdisjoint(found) or any(
        _named(found.get(name), depth + 1) for name in IN_REQUESTS
    )
