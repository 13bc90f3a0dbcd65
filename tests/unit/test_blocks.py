"""Block keys: fixed values, full blocks only, clear refusals."""

import pytest

from epp.state.blocks import OWN_BLOCK_TOKENS, block_key, byte_keys, pack, seed_of, token_keys


def test_keys_never_change_without_a_new_scheme() -> None:
    seed = seed_of("m", salt="s", lora="l")
    assert seed == GOLDEN_SEED
    assert token_keys(range(128), seed) == GOLDEN_KEYS


GOLDEN_SEED = 4672149803536702688
GOLDEN_KEYS = (622961152115602521, 18134110679931019566)


@pytest.mark.parametrize(
    ("tokens", "blocks"), [(0, 0), (1, 0), (63, 0), (64, 1), (65, 1), (128, 2)]
)
def test_only_full_blocks_have_keys(tokens: int, blocks: int) -> None:
    assert len(token_keys(range(tokens), 7)) == blocks
    assert len(byte_keys(bytes(4 * tokens), 7)) == blocks


@pytest.mark.parametrize("wrong", [-1, 2**32, 1.5, "a", None])
def test_what_is_no_token_id_is_refused_clearly(wrong: object) -> None:
    with pytest.raises(ValueError, match="token ids are integers from 0 to"):
        token_keys([1, wrong], 7)  # type: ignore[list-item]  # a caller's mistake on purpose


def test_the_largest_token_id_is_fine() -> None:
    assert pack([2**32 - 1, 1]) == b"\xff\xff\xff\xff\x01\x00\x00\x00"


def test_packed_ids_of_a_broken_length_are_refused() -> None:
    with pytest.raises(ValueError, match="4 bytes each, got 5"):
        token_keys(b"12345", 7)


@pytest.mark.parametrize("size", [0, -1])
def test_a_block_has_at_least_one_token(size: int) -> None:
    with pytest.raises(ValueError, match="block_tokens must be positive"):
        token_keys([1], 7, size)
    with pytest.raises(ValueError, match="block_tokens must be positive"):
        byte_keys(b"1", 7, size)


def test_a_model_name_may_hold_a_lone_surrogate() -> None:
    assert seed_of("\ud800") != seed_of("?")


def test_extras_change_the_key_and_nothing_else_equals_them() -> None:
    block = pack(range(OWN_BLOCK_TOKENS))
    plain = block_key(5, block)
    assert plain == token_keys(block, 5)[0]
    assert len({plain, block_key(5, block, b"a"), block_key(5, block, b"b")}) == 3
