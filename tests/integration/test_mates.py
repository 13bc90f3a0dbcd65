"""Workers share the embedded store: the first one hosts it, over real sockets."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from epp.errors import StoreError
from epp.framework import EndpointId, Incarnation, PoolId
from epp.state.mates import hub as hub_module
from epp.state.mates.board import MOST_NAMES, Board
from epp.state.mates.hub import Hub
from epp.state.mates.link import Link
from epp.state.mates.wire import heard, said
from epp.state.store.abreast import PROMPT_S
from epp.state.store.frames import FrameBuffer, frame
from epp.state.store.memory import StateServer
from epp.state.store.port_writer import StateWriter
from epp.state.sums import LEASE_S, EndpointSum, ReplicaSums
from tests.timing import scaled

A = EndpointId(PoolId("p"), "a", 1)
LIFE = Incarnation(A, 7)


def sums(name: str, requests: int = 1) -> ReplicaSums:
    return ReplicaSums(name, (EndpointSum(incarnation=LIFE, requests=requests),))


class Mate:
    """A worker that keeps what it reads."""

    def __init__(self, ways: Hub | Link) -> None:
        self.ways = ways
        self.records: list[bytes] = []
        self.behind_s: list[float] = []
        """How old each of them may have been."""

    async def follow(self) -> None:
        async for records in self.ways.records():
            self.records += records
            self.behind_s += [self.ways.behind_s] * len(records)


@asynccontextmanager
async def hosted(path: Path) -> AsyncIterator[Mate]:
    server = StateServer("127.0.0.1", 0, token=None, is_member=lambda _: True)
    async with following(Hub(server, path, clock=asyncio.get_running_loop().time)) as mate:
        yield mate


@asynccontextmanager
async def following(ways: Hub | Link) -> AsyncIterator[Mate]:
    if isinstance(ways, Hub):
        await ways.start()
    mate = Mate(ways)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(mate.follow())
        try:
            yield mate
        finally:
            task.cancel()
            await ways.close()


def link(path: Path) -> Link:
    return Link(path, clock=asyncio.get_running_loop().time, rng=random.Random(1))


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(scaled(5)):
        while not holds():  # noqa: ASYNC110 - the condition belongs to somebody else
            await asyncio.sleep(0.01)


async def cut(line: asyncio.StreamReader) -> bool:
    """Whether the other side ends it. TimeoutError when it does not in time."""
    async with asyncio.timeout(scaled(5)):
        await line.read()
    return line.at_eof()


def port_of(mate: Mate) -> int:
    assert isinstance(mate.ways, Hub)
    return mate.ways.server.port


async def written(mate: Mate, *records: bytes) -> StateWriter:
    """A sidecar of which these records came."""
    writer = StateWriter("127.0.0.1", port_of(mate), token=None)
    await writer.claim(LIFE, 1)
    for record in records:
        await writer.append(record)
    return writer


async def append_for_ever(writer: StateWriter) -> None:
    async with asyncio.timeout(scaled(5)):
        while True:
            await writer.append(b"y")
            await asyncio.sleep(0.01)


async def hear(mate: Mate, names: set[str]) -> None:
    """Wait until it has heard of just these."""
    async with asyncio.timeout(scaled(5)):
        while {told.replica for told in await mate.ways.others()} != names:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_every_worker_reads_what_sidecars_write_in_order(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with hosted(path) as first, following(link(path)) as one, following(link(path)) as two:
        await until(lambda: first.ways.counts["lines"] == 2)
        records = [b"%d" % number for number in range(1000)]
        writer = await written(first, *records)
        for mate in (first, one, two):
            await until(lambda mate=mate: len(mate.records) == 1000)  # type: ignore[misc]
            assert mate.records == records
        await writer.close()


async def test_sidecars_say_all_again_when_a_worker_comes(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with hosted(path) as first:
        writer = await written(first, b"x")
        await until(lambda: first.records == [b"x"])
        async with following(link(path)):
            with pytest.raises(StoreError):  # cut: it begins anew, with a full state
                await append_for_ever(writer)
        await writer.close()


async def test_workers_hear_each_others_sums_through_the_first(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with hosted(path) as first, following(link(path)) as one, following(link(path)) as two:
        await until(lambda: one.ways.connected and two.ways.connected)
        await until(lambda: first.ways.counts["lines"] == 2)
        mates = {"first": first, "one": one, "two": two}
        for name, mate in mates.items():
            await mate.ways.publish(sums(name))
        for name, mate in mates.items():
            await hear(mate, mates.keys() - {name})
            assert len(await mate.ways.others()) == 2


async def test_a_worker_follows_the_first_one_over_its_death(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with following(link(path)) as one:
        with pytest.raises(StoreError):
            await one.ways.publish(sums("one"))
        async with hosted(path):
            await until(lambda: one.ways.connected)
        await until(lambda: not one.ways.connected)
        with pytest.raises(StoreError):
            await one.ways.others()
        async with hosted(path) as first:
            await until(lambda: one.ways.connected)
            writer = await written(first, b"z")
            await until(lambda: one.records == [b"z"])
            assert one.ways.counts["connected"] == 2
            await writer.close()


async def test_a_worker_that_reads_nothing_is_cut_before_it_fills_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "QUEUED_BYTES", 100_000)
    path = tmp_path / "s"
    async with hosted(path) as first:
        _, stuck = await asyncio.open_unix_connection(str(path), limit=1)
        stuck.transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: first.ways.counts["lines"] == 1)
        writer = await written(first, *([b"x" * 10_000] * 400))
        await until(lambda: first.ways.counts["slow"] == 1)
        assert len(first.records) > 0
        await writer.close()
        stuck.close()


@pytest.mark.parametrize("nonsense", [b"\xff\xff\xff\xff", frame(b"\x00nonsense")])
async def test_a_line_that_says_nonsense_is_cut_and_counted(
    tmp_path: Path, nonsense: bytes
) -> None:
    path = tmp_path / "s"
    async with hosted(path) as first:
        down, up = await asyncio.open_unix_connection(str(path))
        up.write(nonsense)
        await until(lambda: first.ways.counts["damaged"] == 1)
        assert await cut(down)
        up.close()


async def test_no_more_lines_are_taken_than_there_can_be_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "MOST_LINES", 1)
    path = tmp_path / "s"
    async with hosted(path) as first, following(link(path)):
        await until(lambda: first.ways.counts["lines"] == 1)
        down, up = await asyncio.open_unix_connection(str(path))
        await until(lambda: first.ways.counts["full"] == 1)
        assert await cut(down)
        assert first.ways.counts["lines"] == 1
        up.close()


def test_sums_are_believed_for_one_lease_and_from_a_bounded_number_of_names() -> None:
    now = [0.0]
    board = Board(lambda: now[0])
    for number in range(MOST_NAMES + 10):
        board.take(sums(f"w{number}"))
    assert len(board.believed()) == MOST_NAMES
    now[0] = LEASE_S / 2
    board.take(sums("w1", 5))
    now[0] = LEASE_S
    assert board.believed() == [sums("w1", 5)]


def test_a_record_is_never_taken_for_sums() -> None:
    (message,) = FrameBuffer().feed(said(sums("w")))
    assert heard(message) == sums("w")
    assert heard(b"\x08\x01record") is None
    assert heard(b"") is None


async def test_what_came_while_a_worker_stood_still_is_no_news_to_it(tmp_path: Path) -> None:
    """As over Redis and on the state port (C26); red where `Link.behind_s` is always 0."""
    path = tmp_path / "s"
    async with hosted(path) as first, following(link(path)) as other:
        await until(lambda: first.ways.counts["lines"] == 1)
        writer = await written(first, b"x")
        await until(lambda: other.records == [b"x"])
        time.sleep(PROMPT_S + 1.0)  # noqa: ASYNC251 - the process stands still
        await writer.append(b"y")
        await until(lambda: other.records == [b"x", b"y"])
        assert other.behind_s[1] > PROMPT_S
        await asyncio.sleep(scaled(0.05))
        await writer.append(b"z")
        await until(lambda: len(other.records) == 3)
        assert other.behind_s[2] == 0.0
        await writer.close()
