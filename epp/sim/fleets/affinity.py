"""Which CPUs the processes of a part may use. Does nothing where the system cannot say.

vLLM's NIXL connector binds one thread of every server on CPUs to the last core, where the servers
of one machine then spin against each other with `sched_yield`: a handoff takes seconds instead of
half of one, and sometimes minutes. So a real engine's threads are moved once it is ready.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")


def share(index: int, count: int) -> frozenset[int] | None:
    """CPUs for number `index` of `count` parts that keep each other away; None: there is but one.

    With fewer CPUs than parts some are shared.
    """
    ours = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []
    if len(ours) < 2:
        return None
    return frozenset(ours[index::count] or [ours[index % len(ours)]])


def move(group: int, cpus: frozenset[int]) -> int:
    """Let every thread of every process in this process group use these CPUs only.

    Returns how many threads there were. What ends meanwhile is left out.
    """
    if sys.platform != "linux":
        return 0
    moved = 0
    for process in _PROC.glob("[0-9]*"):
        with suppress(OSError, ValueError):
            if _group(process) != group:
                continue
            for thread in (process / "task").iterdir():
                with suppress(OSError):
                    os.sched_setaffinity(int(thread.name), cpus)
                    moved += 1
    return moved


def _group(process: Path) -> int:
    """The process group: the third field after the name, which may hold anything."""
    return int((process / "stat").read_text(errors="replace").rpartition(")")[2].split()[2])
