"""An answer on its way to a client that is slow to take it, or takes no more."""

import asyncio
from typing import cast

import pytest

from sidecar.http.client import Client, Head, Wait
from sidecar.http.exchange import Exchange
from sidecar.http.incoming import Incoming
from sidecar.http.outflow import Outflow
from sidecar.http.passage import Passage
from sidecar.proxy import Journal
from tests.fakes.waiting import until

HEAD = Head(200, "OK")


class Slow:
    """A client that takes nothing until `room` is given."""

    incoming = Incoming(method="POST", target="/v1/completions", fields=())
    begun = True

    def __init__(self, *, awaited: bool) -> None:
        self.awaited = awaited
        self.room = asyncio.Event()
        self.taken: list[bytes] = []
        self.error: Exception | None = None

    def _wait(self) -> Wait:
        task = self._waited()
        return task if self.awaited else asyncio.get_running_loop().create_task(task)

    async def _waited(self) -> None:
        await self.room.wait()
        if self.error is not None:
            raise self.error

    def begin(self, *_: object, **__: object) -> Wait:
        self.taken.append(b"head")
        return self._wait()

    def write(self, data: bytes) -> Wait:
        self.taken.append(data)
        return None

    def end(self) -> Wait:
        self.taken.append(b"end")
        return self._wait()


class Told:
    def __init__(self, client: Slow) -> None:
        self.reads: list[bool] = []
        self.over = asyncio.Event()
        self.errors: list[Exception] = []
        exchange = Exchange(client.incoming, 0.0)
        passage = Passage(
            cast("Client", client), exchange, cast("Journal", None), lambda: 0.0, lambda: None
        )
        self.outflow = Outflow(
            passage, read_on=self.reads.append, over=self.over.set, broken=self.errors.append
        )


@pytest.mark.parametrize("awaited", [False, True], ids=["future", "coroutine"])
async def test_what_comes_meanwhile_waits_in_order_and_the_engine_is_not_read_on(
    awaited: bool,
) -> None:
    client = Slow(awaited=awaited)
    told = Told(client)
    told.outflow.open(HEAD)
    told.outflow.take(b"a")
    told.outflow.take(b"b")
    assert not told.outflow.chunk(b"1\r\nc\r\n", 1), "it would overtake what waits"
    told.outflow.end()
    assert (client.taken, told.reads) == ([b"head"], [False])
    client.room.set()
    await asyncio.wait_for(told.over.wait(), 5)
    assert client.taken == [b"head", b"a", b"b", b"end"]
    assert (told.reads[-1], told.errors) == (True, [])


async def test_a_client_that_takes_no_more_is_told_of_once_and_nothing_follows() -> None:
    client = Slow(awaited=True)
    told = Told(client)
    told.outflow.open(HEAD)
    told.outflow.take(b"a")
    client.error = ConnectionResetError("gone")
    client.room.set()
    await until(lambda: told.errors)
    told.outflow.end()
    assert (told.errors, client.taken) == ([client.error], [b"head"])
    assert not told.over.is_set()


async def test_what_nobody_wants_any_more_is_not_waited_for() -> None:
    client = Slow(awaited=True)
    told = Told(client)
    before = len(asyncio.all_tasks())
    told.outflow.open(HEAD)
    told.outflow.take(b"a")
    told.outflow.stop()
    await until(lambda: len(asyncio.all_tasks()) == before)
    assert (client.taken, told.errors, told.over.is_set()) == ([b"head"], [], False)
