"""Anthropic's messages on a simulated engine: what is read, and how it is answered. Pure."""

from typing import Any

import msgspec

from epp.bodies.sharing import Api
from epp.sim.answers import Answer, Choice, event
from epp.sim.api import (
    Ask,
    Message,
    Positive,
    Sampling,
    Wire,
    ask_of,
    bad_request,
    decoded,
    tokens_of,
    with_media,
)
from epp.sim.media import Content
from epp.sim.settings import EngineSettings
from epp.sim.tokenizer import decode, render_chat

_STOPS = {"length": "max_tokens", "stop": "end_turn"}


class MessagesBody(Wire, frozen=True, kw_only=True):
    messages: list[Message]
    max_tokens: Positive
    system: Content = None
    tools: list[dict[str, object]] | None = None


def parse(body: bytes, settings: EngineSettings) -> Ask:
    """Read a body of `/v1/messages`. Raises ApiError."""
    wire = decoded(body, MessagesBody)
    if not wire.messages:
        raise bad_request("messages must not be empty", "messages")
    turns = [("system", tokens_of(wire.system))] if wire.system else []
    turns += [(message.role, tokens_of(message.content)) for message in wire.messages]
    tools = msgspec.json.encode(wire.tools).decode() if wire.tools else ""
    prompt = render_chat(turns, tools=tools)
    ask = ask_of(Api.MESSAGES, wire, settings, (prompt,), Sampling(max_tokens=wire.max_tokens))
    return with_media(ask, (wire.system, *(message.content for message in wire.messages)))


class MessageAnswer(Answer):
    """One message of one block."""

    __slots__ = ()
    prefix = "msg_"

    def whole(self) -> bytes:
        content = [{"type": "text", "text": decode(self.choices[0].tokens)}]
        body = self._head(content, self._stop, self.completion_tokens)
        return msgspec.json.encode({**body, **self.handed_over})

    def opening(self, choice: Choice) -> bytes:
        block = {"type": "text", "text": ""}
        return event("message_start", message=self._head([], None, 0)) + event(
            "content_block_start", index=0, content_block=block
        )

    def piece(self, choice: Choice) -> bytes:
        delta = {"type": "text_delta", "text": decode(choice.tokens[-1:])}
        return event("content_block_delta", index=0, delta=delta)

    def closing(self) -> bytes:
        delta = {"stop_reason": self._stop, "stop_sequence": None}
        usage = {"output_tokens": self.completion_tokens}
        return (
            event("content_block_stop", index=0)
            + event("message_delta", delta=delta, usage=usage)
            + event("message_stop")
        )

    def failing(self, error: bytes) -> bytes:
        first = self.choices[0]
        begun = b"" if first.tokens else self.opening(first)
        return begun + event("error", **msgspec.json.decode(error))

    @property
    def _stop(self) -> str | None:
        reason = self.choices[0].finish_reason
        return None if reason is None else _STOPS.get(reason, reason)

    def _head(self, content: list[dict[str, str]], stop: str | None, tokens: int) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self.ask.model,
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": {
                "input_tokens": self.prompt_tokens,
                "output_tokens": tokens,
                "cache_read_input_tokens": self.cached_tokens,
            },
        }
