"""An answer on its way to a client that is slow to take it, or takes no more."""

import asyncio
from collections.abc import Iterator
from typing import cast

import pytest

from sidecar.http.client import Head, Wait
from sidecar.http.outflow import Outflow
from sidecar.http.passage import Passage
from tests.fakes.waiting import until

HEAD = Head(200, "OK")


class Slow:
    """A passage whose client takes nothing until `room` is given."""

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

    def open(self, head: Head) -> Wait:
        self.taken.append(b"head")
        return self._wait()

    def take(self, piece: bytes) -> Wait:
        self.taken.append(piece)
        return None

    def closing(self) -> Iterator[Wait]:
        self.taken.append(b"rest")
        yield None
        yield self._wait()
        self.taken.append(b"end")


class Told:
    def __init__(self, passage: Slow) -> None:
        self.reads: list[bool] = []
        self.over = asyncio.Event()
        self.errors: list[Exception] = []
        self.outflow = Outflow(
            cast("Passage", passage),
            read_on=self.reads.append,
            over=self.over.set,
            broken=self.errors.append,
        )


@pytest.mark.parametrize("awaited", [False, True], ids=["future", "coroutine"])
async def test_what_comes_meanwhile_waits_in_order_and_the_engine_is_not_read_on(
    awaited: bool,
) -> None:
    passage = Slow(awaited=awaited)
    told = Told(passage)
    told.outflow.open(HEAD)
    told.outflow.take(b"a")
    told.outflow.take(b"b")
    assert not told.outflow.chunk(b"1\r\nc\r\n", 1), "it would overtake what waits"
    told.outflow.end()
    assert (passage.taken, told.reads) == ([b"head"], [False])
    passage.room.set()
    await asyncio.wait_for(told.over.wait(), 5)
    assert passage.taken == [b"head", b"a", b"b", b"rest", b"end"]
    assert (told.reads[-1], told.errors) == (True, [])


async def test_a_client_that_takes_no_more_is_told_of_once_and_nothing_follows() -> None:
    passage = Slow(awaited=True)
    told = Told(passage)
    told.outflow.open(HEAD)
    told.outflow.take(b"a")
    passage.error = ConnectionResetError("gone")
    passage.room.set()
    await until(lambda: told.errors)
    told.outflow.end()
    assert (told.errors, passage.taken) == ([passage.error], [b"head"])
    assert not told.over.is_set()


async def test_what_nobody_wants_any_more_is_not_waited_for() -> None:
    passage = Slow(awaited=True)
    told = Told(passage)
    before = len(asyncio.all_tasks())
    told.outflow.open(HEAD)
    told.outflow.take(b"a")
    told.outflow.stop()
    await until(lambda: len(asyncio.all_tasks()) == before)
    assert (passage.taken, told.errors, told.over.is_set()) == ([b"head"], [], False)
