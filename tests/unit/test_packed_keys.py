"""Packed keys are a sequence like any other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.state.keys import PackedKeys, packed
from epp.state.prefix.holders import as_keys

KEYS = st.lists(st.integers(0, 2**64 - 1), max_size=20)


@given(KEYS)
def test_packed_keys_are_equal_to_the_numbers_they_were_made_of(keys: list[int]) -> None:
    made = PackedKeys.of(keys)
    assert made == tuple(keys)
    assert tuple(keys) == made
    assert (list(made), len(made), hash(made)) == (keys, len(keys), hash(tuple(keys)))
    assert PackedKeys.of(made) == PackedKeys.of(np.array(keys, np.uint64)) == made
    assert as_keys(made).tolist() == keys
    assert made != [*keys, 1]


def test_a_number_that_is_no_key_is_not_packed() -> None:
    for wrong in (-1, 2**64):
        with pytest.raises(OverflowError):
            packed([wrong])
    with pytest.raises(ValueError, match="no whole number of keys"):
        PackedKeys(bytes(7))
