"""What msgspec reads of bodies, apart from the code that asks for it: that can be compiled
(docs/decisions/0017), and these classes cannot. Pure.
"""

from typing import Any

import msgspec


class Told(msgspec.Struct):
    """Where an answer may tell its usage: of the text of an answer nothing is made."""

    usage: Any = None
    response: Any = None
    message: Any = None


class Tool(msgspec.Struct):
    """A tool that a request of the responses API offers."""

    type: str


TOLD = msgspec.json.Decoder(Told)
TOOLS = msgspec.json.Decoder(list[Tool])
