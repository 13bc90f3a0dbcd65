"""Response bodies of the engine's HTTP API: what those of all APIs have in common. Pure."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import msgspec

from epp.sim.api import Ask

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
    embeddings: dict[str, object] | None = None
    """`ec_transfer_params`: where the embeddings of its media are to be had."""
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Answer(ABC):
    """One request's answers and how to write them down. `of` makes one without a token yet."""

    prefix: ClassVar[str]
    """How ids of answers begin."""

    ask: Ask
    id: str
    created: int
    """Unix time in seconds."""
    choices: tuple[Choice, ...]

    @classmethod
    def of(cls, ask: Ask, request_id: str, created: int) -> "Answer":
        prompts = [prompt for prompt in ask.prompts for _ in range(ask.choices)]
        choices = tuple(Choice(index, prompt) for index, prompt in enumerate(prompts))
        return cls(ask, f"{cls.prefix}{request_id}", created, choices)

    @property
    def ended(self) -> bool:
        return all(choice.finish_reason for choice in self.choices)

    @property
    def prompt_tokens(self) -> int:
        return sum(len(one) for one in self.ask.prompts)

    @property
    def completion_tokens(self) -> int:
        return sum(len(choice.tokens) for choice in self.choices)

    @property
    def cached_tokens(self) -> int:
        """The answers to one prompt share its tokens, which count once: as found by the first."""
        return sum(one.cached_tokens for one in self.choices[:: self.ask.choices])

    @property
    def handed_over(self) -> dict[str, object]:
        """Members of a whole answer that tell other engines where to find what this one made.

        There is room for one set of KV's parameters; those of further choices are lost, as in vLLM.
        """
        first = self.choices[0]
        kv: dict[str, object] = {"kv_transfer_params": first.transfer}
        if first.embeddings is None:
            return kv
        return {**kv, "ec_transfer_params": first.embeddings}

    @abstractmethod
    def whole(self) -> bytes:
        """Body of an answer that is not streamed."""

    @abstractmethod
    def opening(self, choice: Choice) -> bytes:
        """What a stream says before the first token of a choice; may be nothing."""

    @abstractmethod
    def piece(self, choice: Choice) -> bytes:
        """The last token of a choice as a server-sent event."""

    @abstractmethod
    def closing(self) -> bytes:
        """What follows the last token."""

    @abstractmethod
    def failing(self, error: bytes) -> bytes:
        """What ends a stream in the place of further tokens; `error` is the body of an error."""

    def refusing(self) -> bytes:
        """A whole answer, or all of a stream, that says that too little is cached."""
        for choice in self.choices:
            choice.finish_reason = COLD
        if not self.ask.stream:
            return self.whole()
        return b"".join(map(self.opening, self.choices)) + self.closing()


def event(name: str, **members: object) -> bytes:
    """A server-sent event that has a name, which its data repeats."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode({"type": name, **members}))


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
