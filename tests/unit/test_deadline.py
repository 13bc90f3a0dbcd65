"""How long a client's gateway waits, and what legs hear of it."""

import pytest

from epp.protocol import TIMEOUT_LEFT_MS, TIMEOUT_MS
from sidecar.http.incoming import Incoming
from sidecar.transfer.deadline import Deadline

NAME = TIMEOUT_MS[0]


def deadline(value: str | None, now: list[float]) -> Deadline:
    fields = [] if value is None else [(NAME.title().encode(), value.encode())]
    return Deadline.of(Incoming(method="POST", target="/", fields=fields), lambda: now[0])


def test_what_is_left_goes_down_to_nothing() -> None:
    now = [100.0]
    one = deadline("2500", now)
    assert one.left_s == 2.5
    now[0] = 102.0
    assert one.left_s == 0.5
    now[0] = 200.0
    assert one.left_s == 0.0


@pytest.mark.parametrize("value", [None, "", "0", "-1", "1.5", "1e3", "ten", "9" * 11, "1,2"])
def test_what_cannot_be_read_is_no_deadline(value: str | None) -> None:
    assert deadline(value, [0.0]).left_s is None


def test_of_what_the_gateway_and_the_picker_say_the_shorter_counts() -> None:
    fields = [(NAME.encode(), b"2500"), (TIMEOUT_LEFT_MS.encode(), b"700")]
    one = Deadline.of(Incoming(method="POST", target="/", fields=fields), lambda: 0.0)
    assert one.left_s == 0.7


def test_legs_are_told_what_is_left_in_the_same_field() -> None:
    now = [0.0]
    one = deadline("2500", now)
    fields = [(b"Host", b"x"), (b"X-Envoy-Expected-Rq-Timeout-Ms", b"2500")]
    now[0] = 1.5
    assert one.told(fields) == [(b"Host", b"x"), (b"X-Envoy-Expected-Rq-Timeout-Ms", b"1000")]
    now[0] = 9.0
    assert one.told(fields)[1][1] == b"1"
    assert deadline(None, now).told(fields) == fields
