"""OpenAI's responses on a simulated engine: what is read, and how it is answered. Pure.

Nothing is stored: an id of an earlier response is refused. Instructions are a system's message, and
of the tools the JSON stands before the conversation, as in chats.
"""

from typing import Any

import msgspec

from epp.bodies.sharing import Api
from epp.sim.answers import Answer, Choice, event
from epp.sim.api import (
    Ask,
    Positive,
    Sampling,
    Wire,
    ask_of,
    bad_request,
    decoded,
    tokens_of,
    with_media,
)
from epp.sim.settings import EngineSettings
from epp.sim.tokenizer import decode, render_chat


class _Item(msgspec.Struct, frozen=True):
    role: str
    content: str | list[dict[str, object]]
    type: str = "message"


class ResponsesBody(Wire, frozen=True, kw_only=True):
    input: str | list[_Item]
    instructions: str | None = None
    tools: list[dict[str, object]] | None = None
    max_output_tokens: Positive | None = None
    previous_response_id: str | None = None


def parse(body: bytes, settings: EngineSettings) -> Ask:
    """Read a body of `/v1/responses`. Raises ApiError."""
    wire = decoded(body, ResponsesBody)
    if wire.previous_response_id is not None:
        raise bad_request("This engine stores no responses.", "previous_response_id")
    items = [_Item("user", wire.input)] if isinstance(wire.input, str) else wire.input
    if wire.instructions:
        items = [_Item("system", wire.instructions), *items]
    if not items:
        raise bad_request("input must not be empty", "input")
    tools = msgspec.json.encode(wire.tools).decode() if wire.tools else ""
    prompt = render_chat([(item.role, tokens_of(item.content)) for item in items], tools=tools)
    sampling = Sampling(max_tokens=wire.max_output_tokens)
    ask = ask_of(Api.RESPONSES, wire, settings, (prompt,), sampling)
    return with_media(ask, (item.content for item in items))


class Response(Answer):
    """One response with one message."""

    __slots__ = ()
    prefix = "resp_"

    def whole(self) -> bytes:
        return msgspec.json.encode({**self._body(), **self.handed_over})

    def opening(self, choice: Choice) -> bytes:
        begun = {**self._head("in_progress"), "output": [], "usage": None}
        return (
            event("response.created", response=begun)
            + event("response.in_progress", response=begun)
            + event("response.output_item.added", output_index=0, item=self._item("", None))
            + event("response.content_part.added", output_index=0, content_index=0, part=_part(""))
        )

    def piece(self, choice: Choice) -> bytes:
        text = decode(choice.tokens[-1:])
        return event("response.output_text.delta", output_index=0, content_index=0, delta=text)

    def closing(self) -> bytes:
        text = decode(self.choices[0].tokens)
        return (
            event("response.output_text.done", output_index=0, content_index=0, text=text)
            + event("response.output_item.done", output_index=0, item=self._item(text, "completed"))
            + event("response.completed", response=self._body())
        )

    def failing(self, error: bytes) -> bytes:
        first = self.choices[0]
        failed = {**self._head("failed"), **msgspec.json.decode(error)}
        begun = b"" if first.tokens else self.opening(first)
        return begun + event("response.failed", response=failed)

    def _body(self) -> dict[str, Any]:
        cut = self.choices[0].finish_reason == "length"
        return {
            **self._head("incomplete" if cut else "completed"),
            "output": [self._item(decode(self.choices[0].tokens), "completed")],
            "usage": {
                "input_tokens": self.prompt_tokens,
                "input_tokens_details": {"cached_tokens": self.cached_tokens},
                "output_tokens": self.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": self.prompt_tokens + self.completion_tokens,
            },
        }

    def _head(self, status: str) -> dict[str, Any]:
        named = {"id": self.id, "created_at": self.created, "object": "response"}
        return {**named, "status": status, "model": self.ask.model}

    def _item(self, text: str, status: str | None) -> dict[str, Any]:
        return {
            "id": f"msg_{self.id}",
            "type": "message",
            "role": "assistant",
            "status": status or "in_progress",
            "content": [_part(text)] if status else [],
        }


def _part(text: str) -> dict[str, object]:
    return {"type": "output_text", "text": text, "annotations": []}
