"""OpenAI's responses.

How an engine puts instructions, items and tools into tokens differs by model and version: who
renders them knows, `/tokenize` does not, and where nobody renders they are estimated.
"""

import msgspec

from epp.bodies.sharing import Api

from .conversation import Pieces
from .parser import Parser
from .prompt import Parsed, TextPrompt
from .reading import ABSENT, first_limit, given
from .sharing import Generation, whole

API = "responses"


class _Responses(Generation):
    input: msgspec.Raw = ABSENT
    instructions: msgspec.Raw = ABSENT
    tools: msgspec.Raw = ABSENT
    prompt: msgspec.Raw = ABSENT
    previous_response_id: msgspec.Raw = ABSENT
    conversation: msgspec.Raw = ABSENT
    max_output_tokens: msgspec.Raw = ABSENT
    background: msgspec.Raw = ABSENT
    truncation: msgspec.Raw = ABSENT


class _Item(msgspec.Struct):
    type: str | None = None
    role: str = ""
    content: str | list[msgspec.Raw] | None = None


_responses = msgspec.json.Decoder(_Responses)
_input = msgspec.json.Decoder(str | list[msgspec.Raw])
_instructions = msgspec.json.Decoder(str)
_item = msgspec.json.Decoder(str | _Item)


def responses(path: str, body: bytes, *, nameless: bool = False) -> Parsed:
    """Parse the body of a response to create. Raises BadRequest."""
    return _PARSER.parsed(path, body, nameless=nameless)


def _prompt(request: _Responses) -> TextPrompt:
    """Tools and instructions come first, for they are what conversations share.

    What the engine remembers of an earlier response is not in the body: its id stands in for it.
    """
    items = _input.decode(request.input)
    if not items:
        raise TypeError("no input")
    pieces = Pieces()
    pieces.raw(request.tools)
    if given(request.instructions):
        pieces.text("system")
        pieces.text(_instructions.decode(request.instructions))
    pieces.raw(request.prompt, request.conversation, request.previous_response_id)
    if isinstance(items, str):
        pieces.text("user")
        pieces.text(items)
    else:
        for raw in items:
            _add(pieces, raw)
    return pieces.prompt()


def _add(pieces: Pieces, raw: msgspec.Raw) -> None:
    """Messages give their text; calls, their outputs and the like are taken as they stand."""
    try:
        item = _item.decode(raw)
    except msgspec.ValidationError:
        pieces.opaque(raw)
        return
    if isinstance(item, str):
        pieces.text(item)
    elif item.type in {None, "message"} and item.role:
        pieces.text(item.role)
        pieces.content(item.content)
    else:
        pieces.opaque(raw)


_PARSER = Parser(
    api=API,
    decoder=_responses,
    prompt=_prompt,
    where="input",
    limit=lambda request: first_limit(request.max_output_tokens),
    whole=lambda request: whole(Api.RESPONSES, request),
)
