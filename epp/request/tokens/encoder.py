"""Text to token ids, by one of two libraries that read the same file.

The fast one is young. Before it is trusted with a model it must give the ids of the reference on
texts that are hard for tokenizers; where it does not, or cannot read the file, the reference stays.
"""

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

import msgspec

from epp.errors import ConfigError
from epp.state.blocks import pack


class Encoder(Protocol):
    """Token ids as little-endian uint32. `special`: with what the model puts around a prompt."""

    @property
    def name(self) -> str:
        """Of the library."""
        ...

    def ids(self, text: str, *, special: bool) -> bytes: ...

    def pieces(self, texts: Sequence[str]) -> list[bytes]:
        """Of each text alone, with nothing around it."""
        ...


class Fast:
    """fastokens."""

    name = "fastokens"

    def __init__(self, file: str) -> None:
        """Raises ValueError or RuntimeError for a file that it cannot serve."""
        import fastokens  # noqa: PLC0415 - an extra

        self._tokenizer = fastokens.Tokenizer.from_json_str(file)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def ids(self, text: str, *, special: bool) -> bytes:
        found: bytes = self._tokenizer.encode_batch_flat([text], add_special_tokens=special)[0]
        return found

    def pieces(self, texts: Sequence[str]) -> list[bytes]:
        ids, ends = self._tokenizer.encode_batch_flat(list(texts), add_special_tokens=False)
        at = [4 * int.from_bytes(ends[i : i + 8], "little") for i in range(0, len(ends), 8)]
        return [ids[start:end] for start, end in pairwise(at)]


class Reference:
    """Hugging Face tokenizers."""

    name = "tokenizers"

    def __init__(self, file: str) -> None:
        """Raises whatever the library raises for a file that it cannot read: Exception itself."""
        import tokenizers  # noqa: PLC0415 - an extra

        self._tokenizer: Any = tokenizers.Tokenizer.from_str(file)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def ids(self, text: str, *, special: bool) -> bytes:
        return pack(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def pieces(self, texts: Sequence[str]) -> list[bytes]:
        return [self.ids(text, special=False) for text in texts]


def load(file: str) -> tuple[Encoder, str]:
    """The encoder of a tokenizer.json, and why it is not the fast one, or nothing.

    Takes seconds of CPU. Raises ConfigError where neither library can read the file.
    """
    try:
        reference = Reference(file)
    except ImportError:
        raise ConfigError("", "local tokens need more packages: install gie-epp[tokens]") from None
    except Exception as error:  # noqa: BLE001 - the library raises no other class
        raise ConfigError("", f"tokenizer.json cannot be read: {error}") from None
    try:
        fast = Fast(file)
    except (ImportError, ValueError, RuntimeError, TypeError) as error:
        return reference, f"the fast tokenizer cannot read it: {error}"
    text = _differing(fast, reference, probes(file))
    if text is None:
        return fast, ""
    return reference, f"the fast tokenizer differs on {text[:60]!r}"


def probes(file: str, *, seed: int = 7) -> list[str]:
    """Texts that tokenizers are apt to differ on, with the model's own added tokens among them."""
    added = [one["content"] for one in msgspec.json.decode(file).get("added_tokens") or ()]
    rng = random.Random(seed)
    chosen = added if len(added) <= 32 else [*added[:16], *rng.sample(added[16:], 16)]
    texts = [*_HARD, " ".join(_HARD), "\n\n".join(reversed(_HARD))]
    for one in chosen:
        texts += [one, f"a{one}b", f" {one} \n{one}{one}\tx", f"é{one}  {one.upper()}e\u0301"]
    for _ in range(64):
        words = rng.choices(_HARD, k=6) + rng.choices(chosen, k=2 * bool(chosen))
        rng.shuffle(words)
        texts.append(rng.choice(("", " ", "\n", "  ")).join(words))
    texts += ["".join(map(chr, _codes(rng, 60))) for _ in range(64)]
    return texts


def _differing(one: Encoder, other: Encoder, texts: Sequence[str]) -> str | None:
    """The first text that the two encode differently."""
    for text in texts:
        for special in (False, True):
            if one.ids(text, special=special) != other.ids(text, special=special):
                return text
    if one.pieces(texts) != other.pieces(texts):
        return "several texts at once"
    return None


def _codes(rng: random.Random, count: int) -> list[int]:
    """Code points from everywhere, no surrogates."""
    ranges = ((0, 0x7F), (0x80, 0x2FF), (0x300, 0x36F), (0x370, 0xD7FF), (0xE000, 0x1FFFF))
    return [rng.randint(*rng.choice(ranges)) for _ in range(count)]


_HARD = (
    "",
    " ",
    "The quick brown fox, isn't it? I'll say: DON'T!",
    "    four  spaces\tand\ttabs\r\n\r\n  lines   \n",
    "def f(x: int = 0x1F) -> None:\n\treturn {**x, 'a': [1_000, 2.5e-10]}\n",
    "1234567890 3.14159 ١٢٣ ⅷ ½",
    "Größe, naïve, e\u0301tude, Å Å \ufb01 \u1e9e",
    "日本語のテキスト、 中文文本。한국어 텍스트",
    "Привет, мир! שלום עולם مرحبا بالعالم नमस्ते ไทย",
    "🙂🏳️\u200d🌈👩\u200d👩\u200d👧\u200d👦 \U0001f468\U0001f3fd",
    "\u200b\u200e\ufeff\u00a0\u2003\u3000|\x00\x01\x7f\x85",
    "<|not a token|> <s> </s> [INST] <unk> \u2581 \u0120",
    "https://example.org/a?b=c&d=%20#e <a href='x'>&amp;</a>",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "CamelCaseHTTPServerError snake_case_name kebab-case --- ___ ...",
)
