"""A text that is cut where cutting is proven safe has the tokens of the whole."""

import json
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.request.tokens import encoder
from epp.request.tokens.cutting import cut_tokens
from epp.request.tokens.prefixes import Prefixes
from epp.state import blocks
from tests.fakes.registry_tokenizers import NAMES, registry_file
from tests.fakes.tokenizers import KINDS, file_of

HARD = (
    *(" ", "  ", "\n", "\t", "\r\n", "\u00a0", "\u2581", "\u0301", "\u200d"),
    *("a", "B", "the", "'s", "'LL", "12", "3456", "_", "naïve", "nai\u0308ve", "é", "e\u0301"),
    *("日本", "🙂", "<", "|", "<|", "<|im_", "|>", "<s>", "</s>", "<unk>", "<0x41>"),
    *("<|left|>", "<|right|>", "[INST]", "<|eot_id|>", "<|im_start|>", "<|im_end|>"),
)


def texts(tokens: tuple[str, ...]) -> st.SearchStrategy[str]:
    word = st.sampled_from(HARD) | st.text(max_size=6)
    if tokens:
        word = word | st.sampled_from(tokens)
    return st.lists(word, max_size=40).map("".join)


def check(file: str, encoders: list[encoder.Encoder], data: st.DataObject) -> None:
    tokens = _cuts(file)
    text = data.draw(texts(tokens[:24]))
    for one in encoders:
        whole = one.ids(text, special=False)
        for token in tokens[:24]:
            at = text.find(token, 1)
            if at > 0:
                assert b"".join(one.pieces([text[:at], text[at:]])) == whole


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_text_cut_before_a_safe_token_has_the_tokens_of_the_whole(
    kind: str, data: st.DataObject
) -> None:
    file = file_of(kind)
    assert set(_cuts(file)) >= {"<|im_start|>", "<|im_end|>"}
    check(file, [_reference(file), _trusted(file)], data)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=2000, deadline=None)
@given(data=st.data())
def test_tokenizers_of_known_models_can_be_cut_too(name: str, data: st.DataObject) -> None:
    file = registry_file(name)
    assert _cuts(file)
    check(file, [_trusted(file)], data)


@settings(max_examples=150, deadline=None)
@given(
    turns=st.lists(texts(("<|im_start|>", "<|im_end|>")), min_size=1, max_size=8),
    long=st.integers(0, 3),
)
def test_a_chat_that_grows_has_the_keys_of_its_whole_text(turns: list[str], long: int) -> None:
    file = file_of("byte-level")
    tokens = _trusted(file)
    prefixes = Prefixes(1 << 20, block_tokens=16, max_keys=64)
    text = ""
    for turn in turns:
        text += "<|im_start|>" + turn * (1 + 20 * long) + "<|im_end|>"
        count, keys = prefixes.keys(tokens, text, 7, "<|im_start|>")
        ids = tokens.ids(text, special=False)
        assert count == len(ids) // 4
        assert keys == blocks.token_keys(ids, 7, 16)[:64]


@cache
def _cuts(file: str) -> tuple[str, ...]:
    return cut_tokens(json.loads(file))


@cache
def _reference(file: str) -> encoder.Encoder:
    return encoder.Reference(file)


@cache
def _trusted(file: str) -> encoder.Encoder:
    """The encoder that is used for the file."""
    return encoder.load(file)[0]
