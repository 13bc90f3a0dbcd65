"""Response bodies of the engine's HTTP API, whole and in pieces, in the shapes of vLLM 0.32. Pure.

A stream has one JSON object per token and choice, and for chat one more with the role in front.
"""

from dataclasses import dataclass, field

import msgspec

from epp.sim.api import Ask
from epp.sim.tokenizer import decode

DONE = b"data: [DONE]\n\n"
COLD = "cache_threshold"
"""Finish reason of a request whose prompt is not cached enough for it."""

_encode = msgspec.json.encode


@dataclass(slots=True)
class Choice:
    """One answer as far as it has come."""

    index: int
    prompt: list[int]
    tokens: list[int] = field(default_factory=list[int])
    cached_tokens: int = 0
    transfer: dict[str, object] | None = None
    """`kv_transfer_params`: where the KV of its prompt can be pulled."""
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """One request's answers and how to write them down."""

    ask: Ask
    id: str
    created: int
    """Unix time in seconds."""
    choices: tuple[Choice, ...]

    @property
    def ended(self) -> bool:
        return all(choice.finish_reason for choice in self.choices)

    def whole(self) -> bytes:
        """Body of an answer that is not streamed."""
        body = self._head("chat.completion" if self.ask.chat else "text_completion")
        body["choices"] = [self._choice(choice) for choice in self.choices]
        body["usage"] = self.usage()
        # There is room for one set of parameters; those of further choices are lost, as in vLLM.
        body["kv_transfer_params"] = self.choices[0].transfer
        return _encode(body)

    def opening(self, choice: Choice) -> bytes:
        """What a chat stream says before the first token of a choice; nothing for completions."""
        if not self.ask.chat:
            return b""
        delta = {"role": "assistant", "content": ""}
        return self._event([{**_bare(choice), "delta": delta, "finish_reason": None}])

    def piece(self, choice: Choice) -> bytes:
        """The last token of a choice as a server-sent event."""
        token = choice.tokens[-1]
        text = decode((token,))
        part: dict[str, object] = {"delta": {"content": text}} if self.ask.chat else {"text": text}
        body = {**_bare(choice), **part, "finish_reason": choice.finish_reason, "stop_reason": None}
        if self.ask.return_token_ids:
            body["token_ids"] = [token]
        return self._event([body])

    def refusing(self) -> bytes:
        """A whole answer, or all of a stream, that says that too little is cached."""
        for choice in self.choices:
            choice.finish_reason = COLD
        if not self.ask.stream:
            return self.whole()
        part: dict[str, object] = {"delta": {}} if self.ask.chat else {"text": ""}
        said = [{**_bare(one), **part, "finish_reason": COLD} for one in self.choices]
        return self._event(said) + self.closing()

    def failing(self, error: bytes) -> bytes:
        """What ends a stream in the place of further tokens; `error` is the body of an error."""
        first = self.choices[0]
        return (b"" if first.tokens else self.opening(first)) + b"data: " + error + b"\n\n" + DONE

    def closing(self) -> bytes:
        """What follows the last token: the usage where asked for, and the end mark."""
        usage = self._event([], usage=self.usage()) if self.ask.include_usage else b""
        return usage + DONE

    def usage(self) -> dict[str, object]:
        prompt = sum(len(one) for one in self.ask.prompts)
        completion = sum(len(choice.tokens) for choice in self.choices)
        # The answers to one prompt share its tokens, which count once: as found by the first.
        firsts = self.choices[:: self.ask.choices]
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
            "prompt_tokens_details": {"cached_tokens": sum(c.cached_tokens for c in firsts)},
        }

    def _choice(self, choice: Choice) -> dict[str, object]:
        text = decode(choice.tokens)
        body = _bare(choice)
        if self.ask.chat:
            body["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            body["text"] = text
        body |= {"finish_reason": choice.finish_reason, "stop_reason": None}
        if self.ask.return_token_ids:
            body |= {"token_ids": choice.tokens, "prompt_token_ids": choice.prompt}
        return body

    def _event(self, choices: list[dict[str, object]], **more: object) -> bytes:
        body = self._head("chat.completion.chunk" if self.ask.chat else "text_completion")
        return b"data: " + _encode({**body, "choices": choices, **more}) + b"\n\n"

    def _head(self, kind: str) -> dict[str, object]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.ask.model}


def answer_to(ask: Ask, request_id: str, created: int) -> Answer:
    """An answer without any token yet."""
    prompts = [prompt for prompt in ask.prompts for _ in range(ask.choices)]
    choices = tuple(Choice(index, prompt) for index, prompt in enumerate(prompts))
    prefix = "chatcmpl" if ask.chat else "cmpl"
    return Answer(ask, f"{prefix}-{request_id}", created, choices)


def _bare(choice: Choice) -> dict[str, object]:
    return {"index": choice.index, "logprobs": None}


def models_body(names: tuple[str, ...], created: int, context_tokens: int) -> bytes:
    """Body of `/v1/models`; the first name is the model, the others are adapters of it."""
    cards = [
        {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "vllm",
            "root": name,
            "parent": names[0] if name != names[0] else None,
            "max_model_len": context_tokens,
        }
        for name in names
    ]
    return _encode({"object": "list", "data": cards})
