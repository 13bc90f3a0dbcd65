"""A tokenizer and a chat template without a vocabulary file. Pure and the same in every process.

Rule 1: text is cut into pieces of at most six characters that never reach over a gap between
words, so the tokens of a text are a prefix of the tokens of that text and further words.
Rule 2: the pieces that an engine writes are whole pieces themselves, so a conversation that sends
an answer back has the very tokens that the engine computed, and finds their KV blocks.
"""

import re
from collections.abc import Iterable, Sequence
from zlib import crc32

VOCABULARY = 131_072
"""Ids of text are 0 to `VOCABULARY - 1`."""
PLACEHOLDER = VOCABULARY
"""Stands for what is no text."""

_PIECES = re.compile(r" ?\S{1,6}|\s")
_CONSONANTS = "bdfghklmnprstvwz"
_VOWELS = "aeio"


def _id(piece: str) -> int:
    return crc32(piece.encode("utf-8", "surrogatepass")) % VOCABULARY


def _word(index: int) -> str:
    """The `index`-th of 4096 words such as ` tomi`; each is one token."""
    first, rest = divmod(index, 256)
    vowel, rest = divmod(rest, 64)
    second, last = divmod(rest, 4)
    return f" {_CONSONANTS[first]}{_VOWELS[vowel]}{_CONSONANTS[second]}{_VOWELS[last]}"


_WORDS = {_id(word): word for word in map(_word, reversed(range(4096)))}
ANSWER_IDS = tuple(sorted(_WORDS))
"""Ids that an engine may write; each has a text."""

END_OF_MESSAGE = _id("<|end|>")


def encode(text: str) -> list[int]:
    """Token ids of a text; four to five characters each in prose."""
    return [_id(piece) for piece in _PIECES.findall(text)]


def decode(ids: Iterable[int]) -> str:
    """Text of answered ids. Other ids carry no text back and read as a replacement character."""
    return "".join(_WORDS.get(token, "\ufffd") for token in ids)


def render_chat(
    messages: Sequence[tuple[str, str | Sequence[int]]],
    *,
    tools: str = "",
    add_generation_prompt: bool = True,
) -> list[int]:
    """Tokens of a conversation of (role, text, or the tokens of what is more than text); `tools` is
    the JSON text of the tool list."""
    ids: list[int] = []
    if tools:
        ids += [_id("<|tools|>"), *encode(tools), END_OF_MESSAGE]
    for role, said in messages:
        tokens = encode(said) if isinstance(said, str) else said
        ids += [_id(f"<|{role}|>"), *tokens, END_OF_MESSAGE]
    if add_generation_prompt:
        ids.append(_id("<|assistant|>"))
    return ids
