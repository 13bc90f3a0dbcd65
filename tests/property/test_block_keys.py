"""Laws of block keys."""

from hypothesis import given
from hypothesis import strategies as st

from epp.state.blocks import byte_keys, pack, seed_of, token_keys

ids = st.lists(st.integers(0, 2**32 - 1), max_size=300)
seeds = st.integers(0, 2**64 - 1)
names = st.text(max_size=8)


@given(ids, st.integers(0, 300), seeds, st.integers(1, 70))
def test_keys_of_a_prefix_are_a_prefix_of_the_keys(
    tokens: list[int], cut: int, seed: int, size: int
) -> None:
    whole, part = token_keys(tokens, seed, size), token_keys(tokens[:cut], seed, size)
    assert part == whole[: min(cut, len(tokens)) // size]


@given(ids, seeds)
def test_ids_and_packed_ids_have_the_same_keys(tokens: list[int], seed: int) -> None:
    assert token_keys(tokens, seed) == token_keys(pack(tokens), seed)


@given(st.binary(min_size=64, max_size=2000), seeds, st.integers(1, 16))
def test_bytes_never_share_a_key_with_tokens(data: bytes, seed: int, size: int) -> None:
    tokens = data[: len(data) // 4 * 4]
    assert not set(byte_keys(data, seed, size)) & set(token_keys(tokens, seed, size))


@given(st.lists(st.tuples(names, names, names), unique=True, min_size=2, max_size=8))
def test_what_differs_in_model_salt_or_adapter_has_another_seed(
    who: list[tuple[str, str, str]],
) -> None:
    assert len({seed_of(m, salt=s, lora=a) for m, s, a in who}) == len(who)


@given(names, names, names)
def test_letters_never_move_between_model_salt_and_adapter(a: str, b: str, c: str) -> None:
    expected = 1 if not b else 2
    assert len({seed_of(a + b, salt=c), seed_of(a, salt=b + c)}) == expected
    assert len({seed_of(a, salt=b + c), seed_of(a, salt=c, lora=b)}) == expected


@given(ids.filter(lambda t: len(t) >= 8), st.integers(0), seeds)
def test_a_changed_token_changes_every_key_from_its_block_on(
    tokens: list[int], place: int, seed: int
) -> None:
    at = place % len(tokens)
    changed = [*tokens]
    changed[at] ^= 1
    before, after = token_keys(tokens, seed, 8), token_keys(changed, seed, 8)
    assert before[: at // 8] == after[: at // 8]
    assert not set(before[at // 8 :]) & set(after[at // 8 :])
