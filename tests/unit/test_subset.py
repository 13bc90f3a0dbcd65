"""B16: the choice never leaves the gateway's subset."""

import pytest

from epp.request.subset import allowed

ADDRESSES = ["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.2:8001", "[::1]:8000", "localhost:9000"]


@pytest.mark.parametrize(
    ("subset", "expected"),
    [
        ((), []),
        (("10.0.0.1:8000",), ["10.0.0.1:8000"]),
        (("10.0.0.2",), ["10.0.0.2:8000", "10.0.0.2:8001"]),
        ((" 10.0.0.2:8001 ",), ["10.0.0.2:8001"]),
        (("10.0.0.9:8000",), []),
        (("[::1]:8000",), ["[::1]:8000"]),
        (("[::1]",), ["[::1]:8000"]),
        (("::1",), ["[::1]:8000"]),
        (("::1:8000",), ["[::1]:8000"]),
        (("[0:0:0:0:0:0:0:1]:8000",), ["[::1]:8000"]),
        (("[::1]:9",), []),
        (("[::ffff:10.0.0.2]:8001",), ["10.0.0.2:8001"]),
        (("::FFFF:10.0.0.1",), ["10.0.0.1:8000"]),
        (("LOCALHOST:9000",), ["localhost:9000"]),
        (("10.0.0.1:8000", "10.0.0.2:8000"), ["10.0.0.1:8000", "10.0.0.2:8000"]),
        (("", ":", ":8000", "[", "]", "10.0.0.1:", "10.0.0.1:x", "10.0.0.1:80:00", "*"), []),
    ],
)
def test_only_what_the_hint_names_is_allowed(subset: tuple[str, ...], expected: list[str]) -> None:
    inside = allowed(ADDRESSES, subset)
    assert [one for one, yes in zip(ADDRESSES, inside, strict=True) if yes] == expected
