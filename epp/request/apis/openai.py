"""OpenAI's completions and chat completions, as vLLM serves them.

A prompt whose shape we do not understand is not our business: the request is routed by load and the
engine answers for it (fault A10).
"""

from array import array
from collections.abc import Sequence
from sys import byteorder
from typing import cast

import msgspec

from epp.bodies.sharing import Api
from epp.request.offload import INLINE_BYTES

from .conversation import Pieces
from .parser import SHAPELESS, Parser
from .prompt import Fields, Parsed, Prompt, TextPrompt, TokenPrompt
from .reading import ABSENT, first_limit, given, odd, present, read, salt
from .sharing import Generation, whole

COMPLETIONS = "completions"
CHAT = "chat-completions"

COMPLETIONS_DEFAULT_TOKENS = 16
"""Tokens that an engine generates for a completion without a limit of its own."""

_TEMPLATE_FIELDS = (
    "tools",
    "chat_template",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
)


class _Generation(Generation):
    max_tokens: msgspec.Raw = ABSENT
    add_special_tokens: msgspec.Raw = ABSENT


class _Completion(_Generation):
    prompt_embeds: msgspec.Raw = ABSENT


class _AnyPrompt(_Completion):
    prompt: msgspec.Raw = ABSENT


class _OneText(_Completion, kw_only=True):
    prompt: str


class _Chat(_Generation):
    messages: msgspec.Raw = ABSENT
    max_completion_tokens: msgspec.Raw = ABSENT
    tools: msgspec.Raw = ABSENT
    chat_template: msgspec.Raw = ABSENT
    chat_template_kwargs: msgspec.Raw = ABSENT
    add_generation_prompt: msgspec.Raw = ABSENT
    continue_final_message: msgspec.Raw = ABSENT
    documents: msgspec.Raw = ABSENT
    reasoning_effort: msgspec.Raw = ABSENT


class _Message(msgspec.Struct):
    role: str = ""
    content: str | list[msgspec.Raw] | None = None
    name: msgspec.Raw = ABSENT
    tool_calls: msgspec.Raw = ABSENT
    tool_call_id: msgspec.Raw = ABSENT


_any_prompt = msgspec.json.Decoder(_AnyPrompt)
_one_text = msgspec.json.Decoder(_OneText)
_chat = msgspec.json.Decoder(_Chat)
_prompt = msgspec.json.Decoder(str | list[str | int | list[int]])
_messages = msgspec.json.Decoder(list[_Message])
_kwargs = msgspec.json.Decoder(dict[str, msgspec.Raw])


def completions(path: str, body: bytes, *, nameless: bool = False) -> Parsed:
    """Parse the body of a completion. Raises BadRequest."""
    prompt: Prompt | None = None
    prompts = 0
    why = ""
    request: _Completion | None = _text_completion(body)
    if isinstance(request, _OneText) and (request.model or nameless):
        prompt, prompts = _text_prompt(request, body), 1
    else:
        request = read(_any_prompt, body, nameless=nameless)
        if request is None:
            return odd(COMPLETIONS, path, body, nameless=nameless)
        try:
            prompt, prompts = _completion_prompt(request)
        except SHAPELESS:
            why = "prompt of unknown shape"
    return Parsed(
        api=COMPLETIONS,
        path=path,
        model=request.model or "",
        cache_salt=salt(request),
        prompt=prompt,
        output_tokens=first_limit(request.max_tokens) or COMPLETIONS_DEFAULT_TOKENS,
        unscored=why,
        whole=whole(Api.COMPLETIONS, request)
        or ("" if prompts == 1 and not given(request.prompt_embeds) else "prompts"),
    )


def chat(path: str, body: bytes, *, nameless: bool = False) -> Parsed:
    """Parse the body of a chat completion. Raises BadRequest."""
    return _CHAT_PARSER.parsed(path, body, nameless=nameless)


def packed_ids(ids: Sequence[object]) -> bytes:
    """Little-endian uint32 of each id. Raises TypeError or OverflowError for anything else."""
    packed = array("I", cast("Sequence[int]", ids))
    if byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _text_completion(body: bytes) -> _OneText | None:
    """A completion of one text, read in one pass: what nearly all are. None for what is to be read
    member by member, among it large bodies: theirs are read in a thread, and so must be all that is
    looked for in them."""
    if len(body) > INLINE_BYTES:
        return None
    try:
        return _one_text.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _text_prompt(request: _OneText, body: bytes) -> TextPrompt:
    text = request.prompt.encode()
    if given(request.truncate_prompt_tokens):
        return TextPrompt(text, None)
    return TextPrompt(text, lambda: _tokenize(_any_prompt.decode(body)))


def _completion_prompt(request: _AnyPrompt) -> tuple[Prompt, int]:
    """What is to be scored, and how many prompts the request has."""
    prompt = _prompt.decode(request.prompt)
    if isinstance(prompt, str):
        return TextPrompt(prompt.encode(), _tokenize(request)), 1
    if not prompt:
        raise TypeError("no prompt")
    if isinstance(prompt[0], int):
        return TokenPrompt(packed_ids(prompt)), 1
    if isinstance(prompt[0], list):
        lists = [packed_ids(ids if isinstance(ids, list) else [ids]) for ids in prompt]
        longest = max(lists, key=len)
        return TokenPrompt(longest, (sum(map(len, lists)) - len(longest)) // 4), len(lists)
    texts = [text for text in prompt if isinstance(text, str)]
    if len(texts) < len(prompt):
        raise TypeError("prompts of several kinds")
    encoded = [text.encode() for text in texts]
    longest = max(encoded, key=len)
    tokenize = _tokenize(request, msgspec.json.encode(longest.decode()))
    other_bytes = sum(map(len, encoded)) - len(longest)
    return TextPrompt(longest, tokenize, other_bytes=other_bytes), len(texts)


def _tokenize(request: _AnyPrompt, written: bytes | None = None) -> Fields | None:
    """See `TextPrompt.tokenize`. `written`: the prompt as JSON, where the request has several."""
    if given(request.truncate_prompt_tokens):
        return None
    prompt = bytes(request.prompt) if written is None else written
    return (("prompt", prompt), *present(request, ("add_special_tokens",)))


def _chat_prompt(request: _Chat) -> Prompt:
    messages = _messages.decode(request.messages)
    if not messages:
        raise TypeError("no messages")
    pieces = Pieces()
    pieces.raw(request.tools)
    for message in messages:
        pieces.text(message.role)
        pieces.content(message.content)
        pieces.raw(message.name, message.tool_calls, message.tool_call_id)
    exact = pieces.media == 0 and not given(request.truncate_prompt_tokens)
    return pieces.prompt(_chat_fields(request) if exact else None)


def _chat_fields(request: _Chat) -> Fields:
    """What shapes the prompt.

    To `/tokenize` documents and effort are template arguments, and it does not conclude from an
    effort that the model is to think.
    """
    fields = (("messages", _thoughts(request.messages)), *present(request, _TEMPLATE_FIELDS))
    arguments = present(request, ("documents", "reasoning_effort"))
    if not arguments:
        return fields + present(request, ("chat_template_kwargs",))
    given_kwargs = request.chat_template_kwargs
    merged = _kwargs.decode(given_kwargs) if given(given_kwargs) else {}
    if given(request.reasoning_effort):
        thinks = bytes(request.reasoning_effort) != b'"none"'
        merged.setdefault("enable_thinking", msgspec.Raw(msgspec.json.encode(thinks)))
    merged.update((name, msgspec.Raw(raw)) for name, raw in arguments)
    return (*fields, ("chat_template_kwargs", msgspec.json.encode(merged)))


def _thoughts(messages: msgspec.Raw) -> bytes:
    """Messages whose thoughts have the name that `/tokenize` reads; chats may say the older one."""
    raw = bytes(messages)
    if b'"reasoning_content"' not in raw:
        return raw
    decoded = msgspec.json.decode(raw)
    for message in decoded:
        thought = message.pop("reasoning_content", None)
        if thought is not None and message.get("reasoning") is None:
            message["reasoning"] = thought
    return msgspec.json.encode(decoded)


_CHAT_PARSER = Parser(
    api=CHAT,
    decoder=_chat,
    prompt=_chat_prompt,
    where="messages",
    limit=lambda request: first_limit(request.max_completion_tokens, request.max_tokens),
    whole=lambda request: whole(Api.CHAT, request),
)
