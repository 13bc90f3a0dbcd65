"""What a parser understood of a request: the model, the prompt, and how to get its tokens."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A prompt given as token ids: exact without asking anybody."""

    ids: bytes
    """Little-endian uint32 each."""
    other_tokens: int = 0
    """Tokens of the other prompts of the same request: load, but no keys."""


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A prompt, or a conversation, given as text."""

    text: bytes
    """Stands in for the prompt where the engine's tokens are not known: equal beginnings of two
    prompts give equal beginnings here."""
    tokenize: tuple[tuple[str, bytes], ...] | None
    """Fields of the body of the engine's `/tokenize`, as raw JSON, besides `model`; None where its
    answer would not be the prompt that the engine computes (images, truncation)."""
    other_bytes: int = 0
    """Text of the other prompts of the same request: load, but no keys."""
    media_tokens: int = 0
    """Guess for what is not text."""


Prompt = TokenPrompt | TextPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """One request as far as a parser understood it."""

    api: str
    path: str
    """Without the query."""
    model: str = ""
    cache_salt: str = ""
    prompt: Prompt | None = None
    """None: route by load alone."""
    output_tokens: int | None = None
    """The request's own limit of its answer."""
    unscored: str = ""
    """Why there is no prompt, in stable words."""
    whole: str = "api"
    """Why one engine must compute all of it, as a stable word; empty where two may share it."""
