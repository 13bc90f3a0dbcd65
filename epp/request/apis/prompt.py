"""What a parser understood of a request: the model, the prompt, and how to get its tokens."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from epp.framework.quick import quick
from epp.state.blocks import Media

MAX_TEXT_BYTES = 1024 * 1024
"""Text that an engine is asked to tokenize."""
HEAD_BYTES = MAX_TEXT_BYTES + 1
"""What is kept of a prompt: more than any step after the parser reads."""

Fields = tuple[tuple[str, bytes], ...]
"""Members of a JSON object: each with its value as raw JSON."""


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A prompt given as token ids: exact without asking anybody."""

    ids: bytes
    """Little-endian uint32 each."""
    other_tokens: int = 0
    """Tokens of the other prompts of the same request: load, but no keys."""
    media: tuple[Media, ...] = ()
    """What stands in it and is no text, in any order."""

    def bounded(self) -> "TokenPrompt":
        """The same size and the same first keys in bounded memory: 256 thousand ids at most."""
        if len(self.ids) <= HEAD_BYTES:
            return self
        head = self.ids[: HEAD_BYTES & ~3]
        other = self.other_tokens + (len(self.ids) - len(head)) // 4
        return replace(self, ids=head, other_tokens=other)


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A prompt, or a conversation, given as text."""

    text: bytes
    """Stands in for the prompt where the engine's tokens are not known: equal beginnings of two
    prompts give equal beginnings here."""
    asked: Fields | Callable[[], Fields | None] | None
    """See `tokenize`; or who finds them, where that is another pass over the body."""
    other_bytes: int = 0
    """Text of the other prompts of the same request: load, but no keys."""
    media_tokens: int = 0
    """Guess for what is not text."""
    media: tuple[tuple[int, int], ...] = ()
    """See `Request.media`."""

    @property
    def tokenize(self) -> Fields | None:
        """Fields of the body of the engine's `/tokenize`, as raw JSON, besides `model`; None where
        its answer would not be the prompt that the engine computes (images, truncation)."""
        return self.asked() if callable(self.asked) else self.asked

    def bounded(self) -> "TextPrompt":
        """The same size and the same first keys in bounded memory, too long to be tokenized."""
        if len(self.text) <= HEAD_BYTES:
            return self
        other = self.other_bytes + len(self.text) - HEAD_BYTES
        return replace(self, text=self.text[:HEAD_BYTES], asked=None, other_bytes=other)


Prompt = TokenPrompt | TextPrompt


@quick
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
    prompt_tokens: int | None = None
    """Tokens to charge where there is no prompt; None: nobody knows."""
    output_tokens: int | None = None
    """The request's own limit of its answer; 1 where nothing is generated."""
    unscored: str = ""
    """Why there is no prompt, in stable words."""
    whole: str = "api"
    """Why one engine must compute all of it, as a stable word; empty where two may share it."""
