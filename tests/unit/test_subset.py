"""B16: the choice never leaves the gateway's subset."""

import pytest

from epp.framework import Endpoint, EndpointId, Incarnation, PoolId
from epp.request.subset import allowed

ADDRESSES = ["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.2:8001", "[::1]:8000", "localhost:9000"]


def _endpoint(address: str) -> Endpoint:
    ident = EndpointId(PoolId("p"), address, 1)
    return Endpoint(id=ident, address=address, incarnation=Incarnation(ident, 1))


POOL = [_endpoint(address) for address in ADDRESSES]


@pytest.mark.parametrize(
    ("subset", "expected"),
    [
        (None, ADDRESSES),
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
def test_only_what_the_hint_names_is_allowed(
    subset: tuple[str, ...] | None, expected: list[str]
) -> None:
    assert [endpoint.address for endpoint in allowed(POOL, subset)] == expected
