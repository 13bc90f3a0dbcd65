"""The objectives file on a real file system, followed while requests come."""

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from epp.control.objectives import follow
from epp.errors import ConfigError
from epp.framework import PoolId
from epp.request.objectives import LiveObjectives, Objectives
from tests.fakes.waiting import until

POOL = PoolId("llama")


class Never:
    def random(self) -> float:
        pytest.fail("nothing is left to chance")


def priority(number: int, pool: str = "llama") -> str:
    return (
        "apiVersion: llm-d.ai/v1alpha2\nkind: InferenceObjective\nmetadata: {name: gold}\n"
        f"spec: {{poolRef: {{name: {pool}}}, priority: {number}}}\n"
    )


async def test_good_changes_take_over_and_bad_ones_change_nothing(tmp_path: Path) -> None:
    path, live = tmp_path / "objectives.yaml", LiveObjectives(Never())
    path.write_text(priority(1))
    reload = follow(
        path,
        POOL,
        make=Objectives.of,
        swap=live.swap,
        interval_s=0.02,
        settle_s=0.01,
    )
    assert live.priority("gold") == 1
    assert reload is not None
    with capture_logs() as logs:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(reload.run())
            path.write_text(priority(2))
            await until(lambda: live.priority("gold") == 2)
            path.write_text(priority(3).replace("priority", "prioirty"))
            await until(lambda: not reload.current)
            assert live.priority("gold") == 2
            path.write_text(priority(4, pool="other"))
            await until(lambda: reload.current)
            assert live.priority("gold") == 0
            task.cancel()
    assert (reload.taken, reload.refused) == (2, 1)
    (warning,) = [one["warning"] for one in logs if one["log_level"] == "warning"]
    assert warning == f"{path}:1:1 InferenceObjective 'gold' belongs to another pool: left out"
    told = [one["error"] for one in logs if one["log_level"] == "error"]
    assert [f"{path}:4:32 unknown field 'prioirty'; did you mean 'priority'?"] == told


@pytest.mark.parametrize("content", [None, "", "kind: Nothing"])
def test_a_first_reading_that_fails_is_told_and_changes_nothing(
    tmp_path: Path, content: str | None
) -> None:
    path, live = tmp_path / "objectives.yaml", LiveObjectives(Never())
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=r"objectives\.yaml"):
        follow(path, POOL, make=Objectives.of, swap=live.swap)
    assert live.priority("gold") == 0


def test_without_a_file_nothing_is_followed() -> None:
    live = LiveObjectives(Never())
    assert follow(None, POOL, make=Objectives.of, swap=live.swap) is None
