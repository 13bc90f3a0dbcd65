"""How connections of the relay write: together, at the end of a turn of the loop."""

import asyncio
from typing import Any, cast

import pytest

from sidecar.relay.connection import AT_ONCE, Connection, Outlet


class Wire:
    """A transport that remembers what it was given."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closed = ""

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    def writelines(self, pieces: list[bytes]) -> None:
        self.sent.append(b"".join(pieces))

    def is_closing(self) -> bool:
        return bool(self.closed)

    def close(self) -> None:
        self.closed = "close"

    def abort(self) -> None:
        self.closed = "abort"


def connection() -> tuple[Connection, Wire]:
    one, wire = Connection(Outlet(asyncio.get_running_loop())), Wire()
    one.connection_made(cast("Any", wire))
    return one, wire


async def test_what_one_turn_writes_leaves_together_at_its_end() -> None:
    one, wire = connection()
    one.write(b"a")
    one.write(b"b")
    assert wire.sent == []
    await asyncio.sleep(0)
    one.write(b"c")
    await asyncio.sleep(0)
    assert wire.sent == [b"ab", b"c"]


async def test_all_connections_of_an_outlet_are_served_in_one_turn() -> None:
    outlet = Outlet(asyncio.get_running_loop())
    pairs = [(Connection(outlet), Wire()) for _ in range(3)]
    for one, wire in pairs:
        one.connection_made(cast("Any", wire))
        one.write(b"x")
    await asyncio.sleep(0)
    assert [wire.sent for _, wire in pairs] == [[b"x"]] * 3


async def test_much_is_sent_at_once_and_behind_what_waits() -> None:
    one, wire = connection()
    one.write(b"head")
    one.write(b"x" * AT_ONCE)
    assert b"".join(wire.sent) == b"head" + b"x" * AT_ONCE
    await asyncio.sleep(0)
    assert len(b"".join(wire.sent)) == AT_ONCE + 4


@pytest.mark.parametrize(("end", "sent"), [("close", [b"last"]), ("abort", [])])
async def test_what_waits_still_leaves_before_a_close_and_not_after_an_abort(
    end: str, sent: list[bytes]
) -> None:
    one, wire = connection()
    one.write(b"last")
    getattr(one, end)()
    assert wire.closed == end
    one.write(b"more")
    await asyncio.sleep(0)
    assert wire.sent == sent


async def test_a_lost_connection_sends_nothing_and_lets_go_of_those_who_wait() -> None:
    one, wire = connection()
    one.pause_writing()
    wait = one.write(b"a")
    assert isinstance(wait, asyncio.Future)
    one.connection_lost(None)
    await asyncio.sleep(0)
    assert wait.done()
    assert wire.sent == []
