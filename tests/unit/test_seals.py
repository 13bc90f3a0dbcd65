"""The picker's seal under the pods that it names."""

import hashlib
import hmac
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.seals import SKEW_S, Named, SealKeys, joined, mac

KEY, OLD, OTHER = (bytes([n]) * 32 for n in (1, 2, 3))
NAMED = Named(pool="default/pool", decision_id="d-1", prefill="10.0.0.1:8000,10.0.0.2:8000")
NOW = 1_800_000_000.5
LIFE_S = 60.0
PARTS = st.text("a,1", max_size=2)
ALL_NAMED = st.builds(
    Named, pool=PARTS, decision_id=PARTS, prefill=PARTS, encode=PARTS, source=PARTS
)


def sealed(key: bytes = KEY, named: Named = NAMED) -> str:
    return SealKeys(key).seal(named, NOW, LIFE_S)


def test_a_seal_is_believed_until_it_expires() -> None:
    keys = SealKeys(KEY)
    assert keys.error(sealed(), NAMED, NOW) is None
    assert keys.error(sealed(), NAMED, NOW - 3600) is None  # a clock that is behind
    assert keys.error(sealed(), NAMED, NOW + LIFE_S + SKEW_S - 1) is None
    assert keys.error(sealed(), NAMED, NOW + LIFE_S + SKEW_S + 1) == "seal-expired"


def test_both_keys_are_believed_while_one_replaces_the_other() -> None:
    assert SealKeys(KEY, OLD).error(sealed(OLD), NAMED, NOW) is None
    assert SealKeys(OLD, KEY).error(sealed(KEY), NAMED, NOW) is None
    assert SealKeys(KEY, OLD).error(sealed(OTHER), NAMED, NOW) == "seal-key-unknown"


@pytest.mark.parametrize(
    "other",
    [
        replace(NAMED, pool="default/other"),
        replace(NAMED, decision_id="d-2"),
        replace(NAMED, prefill="10.0.0.1:8000"),
        replace(NAMED, prefill="10.0.0.2:8000,10.0.0.1:8000"),
        replace(NAMED, encode="10.0.0.3:8000"),
        replace(NAMED, source="10.0.0.3:8000"),
        replace(NAMED, prefill="", encode=NAMED.prefill),
    ],
)
def test_a_seal_serves_no_other_lists_request_or_pool(other: Named) -> None:
    assert SealKeys(KEY).error(sealed(), other, NOW) == "seal-forged"


def test_the_expiry_cannot_be_changed_nor_the_keys_id() -> None:
    later = sealed().replace(str(int(NOW + LIFE_S)), str(int(NOW + LIFE_S) + 1))
    assert SealKeys(KEY).error(later, NAMED, NOW) == "seal-forged"
    renamed = sealed(OTHER).replace(sealed(OTHER)[3:15], sealed()[3:15])
    assert SealKeys(KEY).error(renamed, NAMED, NOW) == "seal-forged"


@pytest.mark.parametrize("header", ["", "v1", "v2" + sealed()[2:], sealed() + " ", sealed()[:-1]])
def test_what_is_no_seal_is_malformed(header: str) -> None:
    assert SealKeys(KEY).error(header, NAMED, NOW) == "seal-malformed"


@given(ALL_NAMED, ALL_NAMED)
def test_no_two_sets_of_lists_have_one_seal(one: Named, other: Named) -> None:
    same = SealKeys(KEY).error(sealed(named=one), other, NOW) is None
    assert same is (one == other)


def test_neither_the_keys_nor_the_seal_show_a_key() -> None:
    keys = SealKeys(b"secret" * 6, b"hidden" * 6)
    assert "secret" not in repr(keys) + keys.seal(NAMED, NOW, LIFE_S)
    assert "hidden" not in repr(keys)


@pytest.mark.parametrize(
    "values", [["a:1,b:2"], ["a:1", "b:2"], [" a:1 ,\tb:2,"], ["", "a:1,,b:2"]]
)
def test_a_list_is_one_text_however_it_came(values: list[str]) -> None:
    assert joined(values) == "a:1,b:2"


@given(st.binary(max_size=130), st.lists(st.text(max_size=8), max_size=4))
def test_a_mac_is_an_hmac_of_the_parts_with_their_lengths(key: bytes, parts: list[str]) -> None:
    text = b"".join(len(part.encode()).to_bytes(4, "big") + part.encode() for part in parts)
    assert mac(key, parts) == hmac.new(key, text, hashlib.sha256).hexdigest()
