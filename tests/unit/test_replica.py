"""Names of decisions tell the replica that made them."""

import pytest

from epp.ids import DRAWN
from epp.request.replica import MAX_REPLICA, new_ids, short_name


@pytest.mark.parametrize(
    ("pod", "short"),
    [
        (None, ""),
        ("", ""),
        ("epp-0", "epp-0"),
        ("gateway-epp-7d9f8b6c5-x2k4q", "eway-epp-7d9f8b6c5-x2k4q"),
        ("a" * 300, "a" * MAX_REPLICA),
        ("Weird Näme\r\n", "weird-n-me"),
        ("...", ""),
    ],
)
def test_a_replicas_name_is_short_and_printable(pod: str | None, short: str) -> None:
    assert short_name(pod) == short


def test_ids_carry_the_name_and_are_never_the_same() -> None:
    new_id = new_ids("epp-0")
    first, *others = [new_id() for _ in range(3 * DRAWN)]
    assert len({first, *others}) == 3 * DRAWN
    assert first.rpartition("-")[0] == "epp-0"
    assert len(first.rpartition("-")[2]) == 32
    assert len(new_ids()()) == 32
