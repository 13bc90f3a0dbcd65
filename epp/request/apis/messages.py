"""Anthropic's messages.

Engines turn them into a chat of their own before they apply a template: who renders them knows the
tokens, `/tokenize` cannot, and where nobody renders they are estimated.
"""

import msgspec

from epp.bodies.sharing import Api

from .conversation import Pieces
from .parser import Parser
from .prompt import Parsed, TextPrompt
from .reading import ABSENT, first_limit, given
from .sharing import Generation, whole

API = "messages"

_BILLING = "x-anthropic-billing-header"
"""How a system text begins that some clients change with each request; engines leave it out."""


class _Messages(Generation):
    messages: msgspec.Raw = ABSENT
    system: msgspec.Raw = ABSENT
    tools: msgspec.Raw = ABSENT
    max_tokens: msgspec.Raw = ABSENT


class _Message(msgspec.Struct):
    role: str = ""
    content: str | list[msgspec.Raw] | None = None


class _Block(msgspec.Struct):
    """One block of content, without `cache_control`, which moves from turn to turn."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    name: msgspec.Raw = ABSENT
    input: msgspec.Raw = ABSENT
    tool_use_id: msgspec.Raw = ABSENT
    content: msgspec.Raw = ABSENT
    source: msgspec.Raw = ABSENT


_request = msgspec.json.Decoder(_Messages)
_conversation = msgspec.json.Decoder(list[_Message])
_content = msgspec.json.Decoder(str | list[msgspec.Raw])
_block = msgspec.json.Decoder(_Block)


def messages(path: str, body: bytes) -> Parsed:
    """Parse the body of a message to create. Raises BadRequest."""
    return _PARSER.parsed(path, body)


def _prompt(request: _Messages) -> TextPrompt:
    turns = _conversation.decode(request.messages)
    if not turns:
        raise TypeError("no messages")
    pieces = Pieces()
    pieces.raw(request.tools)
    if given(request.system):
        pieces.text("system")
        _add(pieces, _content.decode(request.system), system=True)
    for turn in turns:
        pieces.text(turn.role)
        _add(pieces, turn.content, system=turn.role == "system")
    return pieces.prompt()


def _add(pieces: Pieces, content: str | list[msgspec.Raw] | None, *, system: bool) -> None:
    if isinstance(content, str):
        _add_text(pieces, content, system=system)
    for raw in content if isinstance(content, list) else ():
        block = _block.decode(raw)
        if block.text is not None:
            _add_text(pieces, block.text, system=system)
        elif block.thinking is not None:
            pieces.text(block.thinking)
        elif block.type == "tool_result":
            pieces.raw(block.tool_use_id)
            _add_result(pieces, block.content)
        elif given(block.source):
            pieces.medium(block.source)
        elif given(block.input):
            pieces.raw(block.name, block.input)
        else:
            pieces.opaque(raw)


def _add_text(pieces: Pieces, text: str, *, system: bool) -> None:
    if not (system and text.startswith(_BILLING)):
        pieces.text(text)


def _add_result(pieces: Pieces, result: msgspec.Raw) -> None:
    """What a tool answered: text, or blocks of text and images."""
    if not given(result):
        return
    content = _content.decode(result)
    if isinstance(content, str):
        pieces.text(content)
        return
    for raw in content:
        block = _block.decode(raw)
        if block.text is not None:
            pieces.text(block.text)
        else:
            pieces.medium(block.source if given(block.source) else raw)


_PARSER = Parser(
    api=API,
    decoder=_request,
    prompt=_prompt,
    where="messages",
    limit=lambda request: first_limit(request.max_tokens),
    whole=lambda request: whole(Api.MESSAGES, request),
)
