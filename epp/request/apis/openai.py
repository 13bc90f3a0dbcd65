"""OpenAI's completions and chat completions, as vLLM serves them.

Only what a decision needs is decoded; the rest of the body is skipped and passes byte for byte.
A body that is not a JSON object with a model is refused. A prompt whose shape we do not understand
is not our business: the request is routed by load and the engine answers for it (fault A10).
"""

import json
from array import array
from collections.abc import Sequence
from sys import byteorder
from typing import TypeVar, cast

import msgspec
import xxhash

from epp.errors import BadRequest

from .prompt import Parsed, Prompt, TextPrompt, TokenPrompt
from .sharing import HARMLESS, NULL, whole

COMPLETIONS = "completions"
CHAT = "chat-completions"

COMPLETIONS_DEFAULT_TOKENS = 16
"""Tokens that an engine generates for a completion without a limit of its own."""
MEDIA_TOKENS = 256
"""Guess for one image, audio or video."""

_TEMPLATE_FIELDS = (
    "tools",
    "chat_template",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
)

_NO_MODEL = "the body must be a JSON object with a `model` that is a string and not empty"

_ABSENT = msgspec.Raw(NULL)
_T = TypeVar("_T")
_B = TypeVar("_B", bound="_Body")


class _Body(msgspec.Struct):
    model: str
    cache_salt: msgspec.Raw = _ABSENT
    max_tokens: msgspec.Raw = _ABSENT
    add_special_tokens: msgspec.Raw = _ABSENT
    truncate_prompt_tokens: msgspec.Raw = _ABSENT
    n: msgspec.Raw = _ABSENT
    best_of: msgspec.Raw = _ABSENT
    echo: msgspec.Raw = _ABSENT
    prompt_logprobs: msgspec.Raw = _ABSENT
    use_beam_search: msgspec.Raw = _ABSENT


class _Completion(_Body):
    prompt: msgspec.Raw = _ABSENT
    prompt_embeds: msgspec.Raw = _ABSENT


class _Chat(_Body):
    messages: msgspec.Raw = _ABSENT
    max_completion_tokens: msgspec.Raw = _ABSENT
    tools: msgspec.Raw = _ABSENT
    chat_template: msgspec.Raw = _ABSENT
    chat_template_kwargs: msgspec.Raw = _ABSENT
    add_generation_prompt: msgspec.Raw = _ABSENT
    continue_final_message: msgspec.Raw = _ABSENT
    documents: msgspec.Raw = _ABSENT
    reasoning_effort: msgspec.Raw = _ABSENT


class _Message(msgspec.Struct):
    role: str = ""
    content: str | list[msgspec.Raw] | None = None
    name: msgspec.Raw = _ABSENT
    tool_calls: msgspec.Raw = _ABSENT
    tool_call_id: msgspec.Raw = _ABSENT


class _Part(msgspec.Struct):
    text: str


_completion = msgspec.json.Decoder(_Completion)
_chat = msgspec.json.Decoder(_Chat)
_prompt = msgspec.json.Decoder(str | list[str | int | list[int]])
_messages = msgspec.json.Decoder(list[_Message])
_part = msgspec.json.Decoder(str | _Part)
_kwargs = msgspec.json.Decoder(dict[str, msgspec.Raw])
_limit = msgspec.json.Decoder(int)
_text = msgspec.json.Decoder(str)


def completions(path: str, body: bytes) -> Parsed:
    """Parse the body of a completion. Raises BadRequest."""
    request = _body(_completion, body)
    if request is None:
        return _odd(COMPLETIONS, path, body)
    prompt: Prompt | None = None
    prompts = 0
    why = ""
    try:
        prompt, prompts = _completion_prompt(request)
    except (msgspec.MsgspecError, RecursionError, TypeError, OverflowError):
        why = "prompt of unknown shape"
    return Parsed(
        api=COMPLETIONS,
        path=path,
        model=request.model,
        cache_salt=_salt(request),
        prompt=prompt,
        output_tokens=_first_limit(request.max_tokens) or COMPLETIONS_DEFAULT_TOKENS,
        unscored=why,
        whole=_whole(request, request.max_tokens)
        or ("" if prompts == 1 and not _given(request.prompt_embeds) else "prompts"),
    )


def chat(path: str, body: bytes) -> Parsed:
    """Parse the body of a chat completion. Raises BadRequest."""
    request = _body(_chat, body)
    if request is None:
        return _odd(CHAT, path, body)
    prompt: Prompt | None = None
    why = ""
    try:
        prompt = _chat_prompt(request)
    except (msgspec.MsgspecError, RecursionError, TypeError):
        why = "messages of unknown shape"
    return Parsed(
        api=CHAT,
        path=path,
        model=request.model,
        cache_salt=_salt(request),
        prompt=prompt,
        output_tokens=_first_limit(request.max_completion_tokens, request.max_tokens),
        unscored=why,
        whole=_whole(request, _either(request.max_completion_tokens, request.max_tokens)),
    )


def _body(decoder: "msgspec.json.Decoder[_B]", body: bytes) -> _B | None:
    """The members that we need; None for what `_odd` is to judge. Raises BadRequest."""
    try:
        request = decoder.decode(body)
    except msgspec.ValidationError:
        raise BadRequest(_NO_MODEL) from None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    except RecursionError:
        raise BadRequest("the body is nested too deeply") from None
    if not request.model:
        raise BadRequest(_NO_MODEL)
    return request


def _odd(api: str, path: str, body: bytes) -> Parsed:
    """JSON that the fast decoder refuses: half of a surrogate pair, which browsers do send.

    It passes unscored, for the engine to judge. Raises BadRequest where it is no JSON at all.
    """
    try:
        decoded = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise BadRequest("the body is not valid JSON") from None
    model = decoded.get("model") if isinstance(decoded, dict) else None
    if not isinstance(model, str) or not model:
        raise BadRequest(_NO_MODEL)
    printable = model.encode("utf-8", "replace").decode()
    return Parsed(api=api, path=path, model=printable, unscored="odd text", whole="odd-text")


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _completion_prompt(request: _Completion) -> tuple[Prompt, int]:
    """What is to be scored, and how many prompts the request has."""
    prompt = _prompt.decode(request.prompt)
    if isinstance(prompt, str):
        return _text_prompt(request, [prompt]), 1
    if not prompt:
        raise TypeError("no prompt")
    if isinstance(prompt[0], int):
        return TokenPrompt(_ids(prompt)), 1
    if isinstance(prompt[0], list):
        lists = [_ids(ids if isinstance(ids, list) else [ids]) for ids in prompt]
        longest = max(lists, key=len)
        return TokenPrompt(longest, (sum(map(len, lists)) - len(longest)) // 4), len(lists)
    texts = [text for text in prompt if isinstance(text, str)]
    if len(texts) < len(prompt):
        raise TypeError("prompts of several kinds")
    return _text_prompt(request, texts), len(texts)


def _text_prompt(request: _Completion, texts: Sequence[str]) -> TextPrompt:
    encoded = [text.encode() for text in texts]
    longest = max(encoded, key=len)
    tokenize = None
    if not _given(request.truncate_prompt_tokens):
        raw = msgspec.json.encode(longest.decode())
        tokenize = (("prompt", raw), *_present(request, "add_special_tokens"))
    return TextPrompt(longest, tokenize, other_bytes=sum(map(len, encoded)) - len(longest))


def _ids(ids: Sequence[object]) -> bytes:
    """Little-endian uint32 of each id. Raises TypeError or OverflowError for anything else."""
    packed = array("I", cast("Sequence[int]", ids))
    if byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _chat_prompt(request: _Chat) -> Prompt:
    messages = _messages.decode(request.messages)
    if not messages:
        raise TypeError("no messages")
    pieces = [bytes(request.tools)] if _given(request.tools) else []
    media = 0
    for message in messages:
        pieces.append(message.role.encode())
        if isinstance(message.content, str):
            pieces.append(message.content.encode())
        for part in message.content if isinstance(message.content, list) else ():
            text = _part_text(part)
            media += text is None
            pieces.append(xxhash.xxh3_128_digest(bytes(part)) if text is None else text)
        pieces += [
            bytes(raw)
            for raw in (message.name, message.tool_calls, message.tool_call_id)
            if _given(raw)
        ]
    exact = media == 0 and not _given(request.truncate_prompt_tokens)
    return TextPrompt(
        b"\0".join(pieces),
        _chat_fields(request) if exact else None,
        media_tokens=media * MEDIA_TOKENS,
    )


def _part_text(part: msgspec.Raw) -> bytes | None:
    """A part's text, or None for an image, a sound or anything else."""
    try:
        decoded = _part.decode(part)
    except msgspec.ValidationError:
        return None
    return (decoded if isinstance(decoded, str) else decoded.text).encode()


def _chat_fields(request: _Chat) -> tuple[tuple[str, bytes], ...]:
    """What shapes the prompt. `/tokenize` takes documents and effort only as template arguments."""
    fields = (("messages", bytes(request.messages)), *_present(request, *_TEMPLATE_FIELDS))
    arguments = _present(request, "documents", "reasoning_effort")
    if not arguments:
        return fields + _present(request, "chat_template_kwargs")
    given = request.chat_template_kwargs
    merged = _kwargs.decode(given) if _given(given) else {}
    merged.update((name, msgspec.Raw(raw)) for name, raw in arguments)
    return (*fields, ("chat_template_kwargs", msgspec.json.encode(merged)))


def _present(request: _Body, *names: str) -> tuple[tuple[str, bytes], ...]:
    return tuple((name, bytes(raw)) for name in names if _given(raw := getattr(request, name)))


def _given(raw: msgspec.Raw) -> bool:
    return bytes(raw) != NULL


def _either(first: msgspec.Raw, second: msgspec.Raw) -> msgspec.Raw:
    return first if _given(first) else second


def _whole(request: _Body, limit: msgspec.Raw) -> str:
    return whole({name: getattr(request, name) for name in HARMLESS}, bytes(limit))


def _salt(request: _Body) -> str:
    return _decoded(_text, request.cache_salt) or ""


def _first_limit(*raws: msgspec.Raw) -> int | None:
    """The first usable limit of the answer's tokens; the engine answers for unusable ones."""
    for raw in raws:
        limit = _decoded(_limit, raw)
        if limit is not None and limit > 0:
            return limit
    return None


def _decoded(decoder: "msgspec.json.Decoder[_T]", raw: msgspec.Raw) -> _T | None:
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return None
