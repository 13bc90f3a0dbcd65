"""Tokens made here as the model's engines make them: template, tokenizer, block keys.

The files are the engine's own, so its tokens are ours, as long as it was started to use them as
they are: `Tokens` asks it once, and goes on watching. What a file cannot tell (an engine's own
rendering, images, a template from the client) is `UnrenderableError`.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from epp.request.apis.prompt import Fields

from . import chat, cutting, encoder, files
from .files import ModelFiles
from .prefixes import Prefixes
from .template import ChatTemplate
from .tokenised import UnrenderableError

MAX_RENDERED_BYTES = 16 * 1024 * 1024
"""A template that makes more of a prompt than this has lost its way."""

_CHAT_FIELDS = frozenset(
    {
        "messages",
        "tools",
        "chat_template_kwargs",
        "add_generation_prompt",
        "continue_final_message",
        "add_special_tokens",
    }
)
_ENGINE_ARGUMENTS = frozenset(
    {
        *("chat_template", "tokenize", "conversation", "tools", "messages", "padding"),
        *("truncation", "max_length", "return_tensors", "return_dict"),
        *("return_assistant_tokens_mask", "tokenizer_kwargs"),
    }
)
"""Template arguments that change more than the template's text."""
_PROBE: tuple[dict[str, Any], ...] = (
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"},
    {"role": "user", "content": "c"},
)


class LocalModel:
    """One model's tokens. Nothing in it changes but `prefixes`, so any thread may ask."""

    def __init__(self, given: ModelFiles, prefixes: Prefixes) -> None:
        """Takes seconds of CPU. Raises ConfigError for files that nobody can use."""
        self._encoder, self.slow = encoder.load(given.tokenizer)
        self.encoder = self._encoder.name
        """Of the library that makes the tokens."""
        self._prefixes = prefixes
        self.without_chat = ""
        """Why chats are not rendered here, or nothing."""
        self._templates: dict[str, ChatTemplate] = {}
        try:
            for name, source in given.templates.items():
                self._templates[name] = ChatTemplate(source, given.special)
        except UnrenderableError as error:
            self.without_chat = str(error)
            self._templates = {}
        if not given.templates:
            self.without_chat = "there is no chat template"
        safe = cutting.cut_tokens(msgspec.json.decode(given.tokenizer))
        self._cut = cutting.frequent(safe, self._sample())

    def ids(self, fields: Fields) -> bytes:
        """Packed token ids of what `/tokenize` would be asked. Raises UnrenderableError."""
        text, special = self.text(fields)
        return self._encoder.ids(text, special=special)

    def keys(self, fields: Fields, seed: int) -> tuple[int, tuple[int, ...]]:
        """The number of tokens and the keys of the first blocks. Raises UnrenderableError."""
        text, special = self.text(fields)
        if special:
            return self._prefixes.whole(self._encoder.ids(text, special=True), seed)
        return self._prefixes.keys(self._encoder, text, seed, self._cut)

    def text(self, fields: Fields) -> tuple[str, bool]:
        """The prompt's text, and whether the tokenizer puts its own tokens around it."""
        given = dict(fields)
        if "prompt" in given:
            return _decoded(given["prompt"], str), _flag(given, "add_special_tokens", True)
        if not given.keys() <= _CHAT_FIELDS:
            raise UnrenderableError("fields that the engine must judge")
        return self._chat(given), _flag(given, "add_special_tokens", False)

    def _chat(self, given: Mapping[str, bytes]) -> str:
        tools = chat.tools(given["tools"]) if "tools" in given else None
        template = self._template(tools is not None)
        messages = _decoded(given["messages"], list[Any])
        arguments = _decoded(given.get("chat_template_kwargs", b"{}"), dict[str, Any])
        if arguments.keys() & _ENGINE_ARGUMENTS:
            raise UnrenderableError("template arguments that the engine must judge")
        if not _are_documents(arguments.get("documents")):
            raise UnrenderableError("documents of another shape than engines take")
        arguments |= {name: _decoded(given[name], bool) for name in _SWITCHES if name in given}
        opened = arguments.pop("continue_final_message", False)
        generation = arguments.pop("add_generation_prompt", True)
        if not (isinstance(opened, bool) and isinstance(generation, bool)):
            raise UnrenderableError("switches that are neither true nor false")
        if opened and generation:
            raise UnrenderableError("a message is continued or answered, not both")
        text = template.render(
            chat.conversation(messages, parts=template.wants_parts),
            tools=tools,
            arguments=arguments,
            add_generation_prompt=generation,
            continue_final_message=opened,
        )
        if len(text) > MAX_RENDERED_BYTES:
            raise UnrenderableError("the template makes too much of it")
        return text

    def _template(self, tools: bool) -> ChatTemplate:
        named = self._templates.get(files.TOOL_USE) if tools else None
        template = named or self._templates.get(files.DEFAULT)
        if template is None:
            raise UnrenderableError(self.without_chat or "there is no default chat template")
        return template

    def _sample(self) -> str:
        """A prompt of this model, to see what its chats are made of; nothing without chats."""
        try:
            template = self._template(tools=False)
            messages = chat.conversation(list(_PROBE), parts=template.wants_parts)
            return template.render(messages, tools=None, arguments={}, add_generation_prompt=True)
        except UnrenderableError:
            return ""


_SWITCHES = ("add_generation_prompt", "continue_final_message")


def _are_documents(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(o, dict) for o in value))


def _flag(given: Mapping[str, bytes], name: str, default: bool) -> bool:
    return _decoded(given[name], bool) if name in given else default


def _decoded(raw: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise UnrenderableError("a field of another shape than engines take") from None
