"""A configuration file on a real file system, followed while decisions are made."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from epp.control.reload import Reload
from epp.request.plan.live import Built, LivePlan
from epp.request.plan.source import PlanSource
from tests.fakes.waiting import until

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"


def text(*scorers: str) -> str:
    return f"{HEAD}plugins: [{', '.join(f'{{type: {name}}}' for name in scorers)}]\n"


GOOD = text("queue-scorer")
BETTER = text("queue-scorer", "token-load-scorer")


class Followed:
    """A file, the plan in force, and who follows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.source = PlanSource(file=path)
        first = self.source.read()
        self.live = LivePlan(self.source.built(first))
        self.reload: Reload[Built] = Reload(
            path,
            text=first,
            build=lambda text: self.source.built(text, self.live.built),
            swap=self.live.swap,
            interval_s=0.02,
            settle_s=0.01,
        )

    def write(self, content: str | None) -> None:
        if content is None:
            self.path.unlink()
        else:
            self.path.write_text(content)

    @property
    def scorers(self) -> set[str]:
        return set(self.live.built.profiles["default"].weights)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "c.yaml"
    path.write_text(GOOD)
    return path


@asynccontextmanager
async def followed(path: Path) -> AsyncIterator[Followed]:
    following = Followed(path)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(following.reload.run())
        yield following
        task.cancel()


async def test_a_good_change_takes_over_whole(path: Path) -> None:
    with capture_logs() as logs:
        async with followed(path) as following:
            queue = following.live.built.plugins["queue-scorer"].plugin
            following.write(BETTER)
            await until(lambda: following.reload.taken == 1)
            assert following.scorers == {"queue-scorer", "token-load-scorer"}
            assert following.live.built.plugins["queue-scorer"].plugin is queue
            assert (following.reload.refused, following.reload.current) == (0, True)
    assert [one["event"] for one in logs] == ["configuration changed"]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (text("queue-scorer", "no-such"), "c.yaml:3:34 unknown plugin type 'no-such'"),
        ("plugins: [", "is neither YAML nor JSON"),
        ("", "c.yaml:1:1 is empty"),
        (None, "c.yaml cannot be read"),
    ],
)
async def test_a_bad_change_keeps_the_old_and_is_told_once(
    path: Path, bad: str | None, says: str
) -> None:
    with capture_logs() as logs:
        async with followed(path) as following:
            before = following.live.built
            following.write(bad)
            await until(lambda: following.reload.refused == 1)
            await asyncio.sleep(0.1)
            assert (following.reload.refused, following.reload.current) == (1, False)
            assert following.live.built is before
            following.write(BETTER)
            await until(lambda: following.reload.taken == 1)
            assert following.reload.current
    told = [one for one in logs if one["log_level"] == "error"]
    assert [one["event"] for one in told] == ["configuration refused, the old one stays"]
    assert says in told[0]["error"]


async def test_a_file_that_goes_back_to_what_is_in_force_changes_nothing(path: Path) -> None:
    async with followed(path) as following:
        before = following.live.built
        following.write("broken: [")
        await until(lambda: following.reload.refused == 1)
        following.write(GOOD)
        await until(lambda: following.reload.current)
        assert (following.live.built, following.reload.taken) == (before, 0)


async def test_the_symlink_swap_of_a_mounted_configmap_is_followed(tmp_path: Path) -> None:
    for version, content in (("v1", GOOD), ("v2", BETTER)):
        (tmp_path / version).mkdir()
        (tmp_path / version / "c.yaml").write_text(content)
    data = tmp_path / "..data"
    data.symlink_to("v1")
    path = tmp_path / "c.yaml"
    path.symlink_to("..data/c.yaml")
    async with followed(path) as following:
        swap = tmp_path / "..tmp"
        swap.symlink_to("v2")
        swap.replace(data)
        await until(lambda: following.reload.taken == 1)
        assert "token-load-scorer" in following.scorers


async def test_a_change_that_takes_long_to_build_holds_up_nobody(path: Path) -> None:
    """Building runs in a thread: the loop goes on ticking, and the old plan decides."""
    begun, go = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    async with followed(path) as following:
        quick = following.reload._build

        def slow(text: bytes) -> Built:
            loop.call_soon_threadsafe(begun.set)
            asyncio.run_coroutine_threadsafe(go.wait(), loop).result()
            return quick(text)

        following.reload._build = slow
        following.write(BETTER)
        await begun.wait()
        assert following.scorers == {"queue-scorer"}
        go.set()
        await until(lambda: following.reload.taken == 1)
        assert "token-load-scorer" in following.scorers
