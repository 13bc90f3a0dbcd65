"""Answers to completions and chats, whole and in pieces, in the shapes of vLLM 0.32. Pure.

A stream has one JSON object per token and choice, and for chat one more with the role in front.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from epp.sim.answers import COLD, Answer, Choice
from epp.sim.tokenizer import decode

DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.encode


@dataclass(frozen=True, slots=True)
class OpenAiAnswer(Answer):
    """What both have in common."""

    kind: ClassVar[str]
    """`object` of a whole answer."""
    piece_kind: ClassVar[str]
    """`object` of an event."""

    def whole(self) -> bytes:
        body = self._head(self.kind)
        body["choices"] = [self._choice(choice) for choice in self.choices]
        body["usage"] = self.usage()
        return _encode({**body, **self.handed_over})

    def piece(self, choice: Choice) -> bytes:
        token = choice.tokens[-1]
        part = self._part(decode((token,)))
        body = {**_bare(choice), **part, "finish_reason": choice.finish_reason, "stop_reason": None}
        if self.ask.return_token_ids:
            body["token_ids"] = [token]
        return self._event([body])

    def refusing(self) -> bytes:
        for choice in self.choices:
            choice.finish_reason = COLD
        if not self.ask.stream:
            return self.whole()
        said = [{**_bare(one), **self._part(""), "finish_reason": COLD} for one in self.choices]
        return self._event(said) + self.closing()

    def failing(self, error: bytes) -> bytes:
        first = self.choices[0]
        return (b"" if first.tokens else self.opening(first)) + b"data: " + error + b"\n\n" + DONE

    def closing(self) -> bytes:
        """The usage where asked for, and the end mark."""
        usage = self._event([], usage=self.usage()) if self.ask.include_usage else b""
        return usage + DONE

    def usage(self) -> dict[str, object]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }

    @abstractmethod
    def _part(self, text: str) -> dict[str, object]:
        """What an event says of a text."""

    @abstractmethod
    def _said(self, text: str) -> dict[str, object]:
        """What a whole answer says of it."""

    def _choice(self, choice: Choice) -> dict[str, object]:
        body = _bare(choice) | self._said(decode(choice.tokens))
        body |= {"finish_reason": choice.finish_reason, "stop_reason": None}
        if self.ask.return_token_ids:
            body |= {"token_ids": choice.tokens, "prompt_token_ids": choice.prompt}
        return body

    def _event(self, choices: list[dict[str, object]], **more: object) -> bytes:
        body = self._head(self.piece_kind)
        return b"data: " + _encode({**body, "choices": choices, **more}) + b"\n\n"

    def _head(self, kind: str) -> dict[str, object]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.ask.model}


class Completion(OpenAiAnswer):
    """Of `/v1/completions`."""

    __slots__ = ()
    prefix = "cmpl-"
    kind = piece_kind = "text_completion"

    def opening(self, choice: Choice) -> bytes:
        return b""

    def _part(self, text: str) -> dict[str, object]:
        return {"text": text}

    _said = _part


class Chat(OpenAiAnswer):
    """Of `/v1/chat/completions`."""

    __slots__ = ()
    prefix = "chatcmpl-"
    kind, piece_kind = "chat.completion", "chat.completion.chunk"

    def opening(self, choice: Choice) -> bytes:
        delta = {"role": "assistant", "content": ""}
        return self._event([{**_bare(choice), "delta": delta, "finish_reason": None}])

    def _part(self, text: str) -> dict[str, object]:
        return {"delta": {"content": text} if text else {}}

    def _said(self, text: str) -> dict[str, object]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}


def _bare(choice: Choice) -> dict[str, object]:
    return {"index": choice.index, "logprobs": None}
