"""Where a text may be cut so that its pieces give the tokens of the whole. Pure.

Tokenizers take added tokens out of a text first; what stands between them is worked on by itself.
So a text may be cut before an added token, if all of this holds:

- it is special, and blanks around it stay (lstrip, rstrip and single_word are off);
- it is looked for in the text as it came (not normalized, or nothing is), and begins with a
  character that no neighbour cares for: no blank, no letter, no digit;
- no other added token can reach over its beginning;
- normalizer and pre-tokenizer work on each piece without looking at what comes before it.

The last is a list: on these kinds the property "cut equals whole" was tried with random texts.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_NORMALIZERS = frozenset(
    [
        "NFC",
        "NFD",
        "NFKC",
        "NFKD",
        "Lowercase",
        "Replace",
        "Prepend",
        "StripAccents",
        "BertNormalizer",
        "Precompiled",
    ]
)
_PRE_TOKENIZERS = frozenset(
    [
        "ByteLevel",
        "Split",
        "Metaspace",
        "Digits",
        "Punctuation",
        "Whitespace",
        "WhitespaceSplit",
        "BertPreTokenizer",
        "UnicodeScripts",
        "CharDelimiterSplit",
    ]
)
_MODELS = frozenset({"BPE", "Unigram", "WordPiece", "WordLevel"})

Json = Mapping[str, Any]


def cut_tokens(file: Json) -> tuple[str, ...]:
    """Added tokens of a tokenizer.json before which a text may be cut; none where unproven."""
    normalizer = file.get("normalizer")
    known = (
        _kinds(normalizer, "normalizers") <= _NORMALIZERS
        and _kinds(file.get("pre_tokenizer"), "pretokenizers") <= _PRE_TOKENIZERS
        and _model(file.get("model") or {}) in _MODELS
    )
    if not known:
        return ()
    added = [one for one in file.get("added_tokens") or () if one.get("content")]
    others = _Others([one["content"] for one in added])
    return tuple(
        one["content"]
        for one in added
        if _stands_alone(one, normalizer is None) and not others.reach_over(one["content"])
    )


def frequent(candidates: tuple[str, ...], prompt: str) -> str:
    """The token that occurs most often in a prompt, the first of several; empty without any.

    A long text is searched for one token only: each costs a pass over it.
    """
    found = [(-prompt.count(token), prompt.find(token), token) for token in candidates]
    most = min(found, default=(0, 0, ""))
    return most[2] if most[0] else ""


def _kinds(part: Json | None, members: str) -> set[str]:
    """The kinds that a normalizer or pre-tokenizer is made of."""
    return set(_walk(part, members))


def _walk(part: Json | None, members: str) -> Iterator[str]:
    if part is None:
        return
    if part.get("type") == "Sequence":
        for one in part.get(members) or ():
            yield from _walk(one, members)
    else:
        yield str(part.get("type"))


def _model(model: Json) -> str:
    """The kind of model; dropout makes tokens a matter of chance."""
    kind = model.get("type") or ("BPE" if "merges" in model else "")
    return "" if model.get("dropout") else str(kind)


def _stands_alone(token: Json, unnormalized: bool) -> bool:
    first = token["content"][0]
    return (
        bool(token.get("special"))
        and not any(token.get(flag) for flag in ("lstrip", "rstrip", "single_word"))
        and (unnormalized or not token.get("normalized"))
        and not (first.isspace() or first.isalnum() or first == "_")
    )


class _Others:
    """All added tokens, to be asked whether one of them can take the beginning of another."""

    def __init__(self, contents: Sequence[str]) -> None:
        self._ends = {content[at:] for content in contents for at in range(1, len(content))}
        self._inner = "\0".join(content[1:] for content in contents)

    def reach_over(self, token: str) -> bool:
        """Whether a match that begins earlier can: the token stands in it, or begins as it ends."""
        begins = any(token[:at] in self._ends for at in range(1, len(token) + 1))
        return begins or token in self._inner
