"""A prefill leg proves that it comes from this pool."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.protocol import ROUTING_HEADERS
from sidecar.transfer.legs import LEG_HEADER, LIFE_S, MIN_KEY_BYTES, SKEW_S, Leg, LegKeys

KEY, OLD, OTHER = (bytes([n]) * MIN_KEY_BYTES for n in (1, 2, 3))
LEG = Leg(method="POST", path="/v1/completions", request_id="r-p1", target="10.0.0.1:8000")
NOW = 1_800_000_000.5
PARTS = st.text("a;/", max_size=2)
LEGS = st.builds(Leg, method=PARTS, path=PARTS, request_id=PARTS, target=PARTS)


def test_a_signed_leg_is_genuine_until_it_expires() -> None:
    header = LegKeys(KEY).sign(LEG, NOW)
    keys = LegKeys(KEY)
    assert keys.error(header, LEG, NOW) is None
    assert keys.error(header, LEG, NOW + LIFE_S + SKEW_S - 1) is None
    assert keys.error(header, LEG, NOW + LIFE_S + SKEW_S + 1) == "leg-expired"
    assert keys.error(header, LEG, NOW - SKEW_S) is None
    assert keys.error(header, LEG, NOW - SKEW_S - 2) == "leg-expired"  # no far future either


def test_two_keys_overlap_while_one_replaces_the_other() -> None:
    rotated = LegKeys(KEY, OLD)
    assert rotated.error(LegKeys(OLD).sign(LEG, NOW), LEG, NOW) is None
    assert LegKeys(KEY).error(rotated.sign(LEG, NOW), LEG, NOW) is None
    assert LegKeys(OLD).error(rotated.sign(LEG, NOW), LEG, NOW) == "leg-forged"
    assert rotated.error(LegKeys(OTHER).sign(LEG, NOW), LEG, NOW) == "leg-forged"


@pytest.mark.parametrize(
    "changed",
    [
        replace(LEG, method="PUT"),
        replace(LEG, path="/v1/completions?x"),
        replace(LEG, request_id="r-p2"),
        replace(LEG, target="10.0.0.2:8000"),
        replace(LEG, method="POS", path="T/v1/completions"),
    ],
)
def test_a_header_serves_no_other_leg(changed: Leg) -> None:
    header = LegKeys(KEY).sign(LEG, NOW)
    assert LegKeys(KEY).error(header, changed, NOW) == "leg-forged"


def test_the_expiry_cannot_be_changed() -> None:
    header = LegKeys(KEY).sign(LEG, NOW)
    later = header.replace(str(int(NOW) + LIFE_S), str(int(NOW) + LIFE_S + 1))
    assert later != header
    assert LegKeys(KEY).error(later, LEG, NOW) == "leg-forged"


@pytest.mark.parametrize("header", ["", "v1"])
def test_what_is_no_signature_is_malformed(header: str) -> None:
    assert LegKeys(KEY).error(header, LEG, NOW) == "leg-malformed"


def test_a_header_has_one_spelling() -> None:
    header = LegKeys(KEY).sign(LEG, NOW)
    for other in (header.upper(), header + " ", header + "\n", header + ";", header[:-1]):
        assert LegKeys(KEY).error(other, LEG, NOW) == "leg-malformed"


def test_no_header_is_its_own_reason() -> None:
    assert LegKeys(KEY).error(None, LEG, NOW) == "leg-unsigned"


def test_short_keys_are_refused_and_keys_are_never_shown() -> None:
    for short in (b"", b"x" * (MIN_KEY_BYTES - 1)):
        with pytest.raises(ValueError, match="16 bytes"):
            LegKeys(short)
        with pytest.raises(ValueError, match="16 bytes"):
            LegKeys(KEY, short)
    assert "\\x01" not in repr(LegKeys(KEY, OLD))


def test_a_clients_own_copy_of_the_header_is_always_removed() -> None:
    assert LEG_HEADER in ROUTING_HEADERS


@given(LEGS, LEGS)
def test_no_two_legs_share_a_signature(one: Leg, two: Leg) -> None:
    genuine = LegKeys(KEY).error(LegKeys(KEY).sign(one, NOW), two, NOW) is None
    assert genuine == (one == two)
