"""When a replica says that it is ready: it knows its members, their load and their blocks.

The first two waits for the rest have limits: a log that cannot be read or an engine that does not
answer costs a colder start, not the start. That there is a pool has none: without members there is
nothing to serve.
"""

import asyncio
from collections.abc import Callable

import structlog

from epp.picker import Picker, clock

POLL_S = 0.02
MEASURED_S = 2.0
"""How long to wait for the first word of every member's load."""
WORKER_S = 30.0
"""How long a worker waits for a pool before it serves without."""

log = structlog.get_logger(__name__)


async def warmed(picker: Picker, stop: asyncio.Event) -> None:
    """Until what the log knew before us has been read; not for longer than the settings say."""
    read = await _until(
        lambda: picker.ways.reader.warm or stop.is_set(), picker.settings.warm_timeout_s
    )
    if not read:
        log.warning("ready with a cold index: the log could not be read in time")


async def known(picker: Picker, stop: asyncio.Event) -> None:
    """Until Kubernetes has told the pool's pods and they have told their load, if it is asked."""
    cluster = picker.members.cluster
    if cluster is None:
        return
    told = ""
    while not cluster.ready and not stop.is_set():
        if await _until(lambda: cluster.ready or stop.is_set(), MEASURED_S):
            break
        if cluster.why_not != told:
            told = cluster.why_not
            log.warning("not ready", why=told)
    measured = await _until(lambda: _measured(picker) or stop.is_set(), MEASURED_S)
    if not measured:
        log.warning("ready without the load of every member")


async def soon(picker: Picker, stop: asyncio.Event) -> None:
    """Until there is a pool, though not for long: a worker's host is ready when one serves, and
    takes a worker that says nothing for a minute for one that cannot start."""
    cluster = picker.members.cluster
    await _until(lambda: cluster is None or cluster.ready or stop.is_set(), WORKER_S)


async def follow(picker: Picker) -> None:
    """Ready from now on, and while there is a pool, until cancelled."""
    cluster = picker.members.cluster
    picker.health.ready = cluster is None or cluster.ready
    while cluster is not None:
        await cluster.until_moved()
        if picker.health.ready != cluster.ready:
            picker.health.ready = cluster.ready
            if cluster.ready:
                log.info("ready again")
            else:
                log.warning("not ready any more", why=cluster.why_not)


def _measured(picker: Picker) -> bool:
    """Every member that takes requests has told its load."""
    return all(
        status.endpoint.load.age_s is not None
        for status in picker.pool.overview(clock())
        if status.ready
    )


async def _until(holds: Callable[[], bool], limit_s: float) -> bool:
    """Whether it came to hold in time."""
    until = clock() + limit_s
    while not holds():
        if clock() > until:
            return False
        await asyncio.sleep(POLL_S)
    return True
