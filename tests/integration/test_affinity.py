"""Parts that keep to CPUs of their own, with everything that they have started."""

import os
import sys
from pathlib import Path

import pytest

from epp.sim.fleets import affinity
from epp.sim.fleets.supervisor import Part, Supervisor

OURS = sorted(os.sched_getaffinity(0))
PROGRAM = """
import subprocess, sys, threading, time
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_every_part_gets_cpus_and_as_few_others_as_possible(count: int) -> None:
    shares = [affinity.share(index, count) for index in range(count)]
    if len(OURS) < 2:
        assert shares == [None] * count
        return
    for index, mine in enumerate(shares):
        assert mine
        assert mine <= set(OURS)
        if count <= len(OURS):
            assert all(not mine & other for other in shares[:index] if other)


async def test_a_part_that_is_ready_keeps_to_its_cpus_with_threads_and_children(
    tmp_path: Path,
) -> None:
    log = tmp_path / "spread.log"

    async def started() -> bool:
        return bool(log.read_text().strip())

    one = frozenset(OURS[:1])
    part = Part(
        name="spread",
        command=(sys.executable, "-c", PROGRAM),
        address="",
        probe=started,
        cpus=one,
    )
    async with Supervisor(tmp_path) as supervisor:
        supervisor.start(part)
        await supervisor.wait_ready()
        child = int(log.read_text())
        threads = [int(task) for task in os.listdir(f"/proc/{supervisor.pid('spread')}/task")]
        assert len(threads) == 2
        assert {frozenset(os.sched_getaffinity(one)) for one in (*threads, child)} == {one}
    assert sorted(os.sched_getaffinity(0)) == OURS
