"""Block keys: fixed values, full blocks only, clear refusals."""

import pytest

from epp.state.blocks import (
    OWN_BLOCK_TOKENS,
    Media,
    Naming,
    byte_keys,
    chained,
    local_hash,
    media_identity,
    pack,
    placed,
    seed_of,
    token_keys,
)


def test_keys_never_change_without_a_new_scheme() -> None:
    seed = seed_of("m", salt="s", lora="l")
    assert seed == GOLDEN_SEED
    assert token_keys(range(128), seed) == GOLDEN_KEYS


GOLDEN_SEED = 10225992241158436528
GOLDEN_KEYS = (1810500488391183539, 13538500032236539142)
DYNAMO_LOCAL = [15310707395893867146, 15292316782987903195, 5532946206955930018]
DYNAMO_CHAINED = (15310707395893867146, 13769157705258532664, 11879827756109914528)


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


def test_keys_are_local_hashes_of_tokens_chained() -> None:
    blocks = [pack(range(at, at + 16)) for at in (0, 16, 32)]
    local = [local_hash(block, 1337) for block in blocks]
    second = chained(local[0], local[1], 1337)
    expected = (local[0], second, chained(second, local[2], 1337))
    assert token_keys(range(48), 1337, 16) == expected
    # What Dynamo's router makes of the same tokens (tests/property/test_dynamo.py).
    assert local == DYNAMO_LOCAL
    assert token_keys(range(48), 1337, 16) == DYNAMO_CHAINED


def test_what_is_not_text_changes_the_key_from_its_block_on() -> None:
    plain = token_keys(range(256), 5)
    seen = {
        token_keys(range(256), 5, media=media)
        for media in (
            (Media(1, 70),),
            (Media(1, 71),),
            (Media(2, 70),),
            (Media(1, 70), Media(2, 90)),
            (Media(1, 70), Media(1, 90)),
        )
    }
    assert len(seen) == 5
    for keys in seen:
        assert keys[0] == plain[0]
        assert not set(keys[1:]) & set(plain[1:])
    assert token_keys(range(256), 5, media=(Media(1, 256),)) == plain


def test_media_may_be_told_in_any_order() -> None:
    one, two = Media(media_identity("a"), 3), Media(media_identity(b"b"), 9)
    assert token_keys(range(64), 5, media=[one, two]) == token_keys(range(64), 5, media=[two, one])
    block = pack(range(OWN_BLOCK_TOKENS))
    both = placed(one.identity, 3) + placed(two.identity, 9)
    assert token_keys(range(64), 5, media=[one, two]) == (local_hash(block, 5, both),)


def test_a_salt_is_hashed_under_the_pools_own_key() -> None:
    pools = [Naming(), Naming.of_pool("a"), Naming.of_pool("b")]
    pools += [Naming.of_pool("a", salt_key=bytes(32)), Naming.of_pool("b", salt_key=bytes(32))]
    salted = [seed_of("m", salt="tenant", naming=naming) for naming in pools]
    assert len(set(salted)) == 4
    assert salted[3] == salted[4], "the key alone counts, where there is one"
    assert {seed_of("m", naming=naming) for naming in pools} == {seed_of("m")}


def test_a_namespace_shares_nothing_with_another() -> None:
    other = Naming.of_pool("a", namespace="fp8")
    assert seed_of("m", naming=other) != seed_of("m")


def test_a_pools_key_for_salts_is_never_shown() -> None:
    assert "salt_key" not in repr(Naming.of_pool("a", salt_key=b"s" * 32))
