"""The watched endpoint file on a real file system."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from epp.control.files import watch
from epp.errors import ConfigError
from epp.framework import PoolId
from epp.state.endpoints import Member
from tests.timing import scaled


def text(*names: str) -> str:
    entries = [f"{{name: {n}, address: 127.0.0.1, port: {8000 + i}}}" for i, n in enumerate(names)]
    return f"endpoints: [{', '.join(entries)}]\n"


class Watching:
    def __init__(self) -> None:
        self.errors: list[ConfigError] = []
        self.lists: asyncio.Queue[list[Member]] = asyncio.Queue()

    async def run(self, path: Path) -> None:
        async for members in watch(
            path, PoolId("p"), interval_s=0.02, settle_s=0.01, on_error=self.errors.append
        ):
            self.lists.put_nowait(members)

    async def next(self) -> list[str]:
        async with asyncio.timeout(scaled(5)):
            members = await self.lists.get()
        return [member.id.name.removeprefix("default/") for member in members]

    async def nothing(self) -> None:
        await asyncio.sleep(0.2)
        assert self.lists.empty()


@asynccontextmanager
async def watching_at(path: Path) -> AsyncIterator[Watching]:
    watching = Watching()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(watching.run(path))
        yield watching
        task.cancel()


async def test_edits_and_renames_are_followed(tmp_path: Path) -> None:
    path = tmp_path / "e.yaml"
    path.write_text(text("a"))
    async with watching_at(path) as watching:
        assert await watching.next() == ["a"]
        path.write_text(text("a", "b"))
        assert await watching.next() == ["a", "b"]
        new = tmp_path / "new"
        new.write_text(text("c"))
        new.replace(path)
        assert await watching.next() == ["c"]


async def test_the_symlink_swap_of_a_mounted_configmap_is_followed(tmp_path: Path) -> None:
    for version, name in (("v1", "a"), ("v2", "b")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "e.yaml").write_text(text(name))
    data = tmp_path / "..data"
    data.symlink_to("v1")
    path = tmp_path / "e.yaml"
    path.symlink_to("..data/e.yaml")
    async with watching_at(path) as watching:
        assert await watching.next() == ["a"]
        swap = tmp_path / "..tmp"
        swap.symlink_to("v2")
        swap.replace(data)
        assert await watching.next() == ["b"]


async def test_a_bad_file_keeps_the_last_good_list_and_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "e.yaml"
    path.write_text(text("a"))
    async with watching_at(path) as watching:
        assert await watching.next() == ["a"]
        path.write_text("endpoints: [{")
        await watching.nothing()
        assert len(watching.errors) == 1
        assert str(watching.errors[0]).startswith(f"{path}:2:1 ")
        path.write_text(text("b"))
        assert await watching.next() == ["b"]


async def test_a_file_that_appears_later_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "e.yaml"
    async with watching_at(path) as watching:
        await asyncio.sleep(0.1)
        path.write_text(text("a"))
        assert await watching.next() == ["a"]
        assert len(watching.errors) == 1


async def test_a_change_that_says_the_same_is_no_change(tmp_path: Path) -> None:
    path = tmp_path / "e.yaml"
    path.write_text(text("a"))
    async with watching_at(path) as watching:
        assert await watching.next() == ["a"]
        path.write_text(text("a") + "# a comment\n")
        await watching.nothing()
