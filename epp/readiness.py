"""When a replica says that it is ready: it knows its members, their load and their blocks.

The first two waits for the rest have limits: a log that cannot be read or an engine that does not
answer costs a colder start, not the start. That there is a pool has none: without members there is
nothing to serve. Of several pools, one that is missing may not keep the others from being served.
"""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from epp.observe.health import Health
from epp.picker import Picker, clock

POLL_S = 0.02
MEASURED_S = 2.0
"""How long to wait for the first word of every member's load."""
WORKER_S = 30.0
"""How long a worker waits for a pool before it serves without."""

ALL_POOLS_S = 30.0
"""How long several pools wait for the last of them; then those that there are are served."""

log = structlog.get_logger(__name__)


class Ready:
    """Ready once there are pools, and while there is one."""

    def __init__(self, pickers: Sequence[Picker], health: Health) -> None:
        self._pickers = pickers
        self._health = health

    async def begin(self, stop: asyncio.Event) -> None:
        """Wait for what is known of the pools."""
        limit_s = ALL_POOLS_S if len(self._pickers) > 1 else None
        async with asyncio.TaskGroup() as tasks:
            for picker in self._pickers:
                tasks.create_task(_begin(picker, stop, limit_s))

    async def keep(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for picker in self._pickers:
                tasks.create_task(follow(picker, self._tell))

    def _tell(self) -> None:
        ready = any(picker.ready for picker in self._pickers)
        if ready != self._health.ready:
            self._health.ready = ready


async def _begin(picker: Picker, stop: asyncio.Event, limit_s: float | None) -> None:
    await warmed(picker, stop)
    try:
        async with asyncio.timeout(limit_s):
            await known(picker, stop)
    except TimeoutError:
        log.warning("other pools are served without it", pool=picker.settings.pool_name)


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


async def follow(picker: Picker, tell: Callable[[], None]) -> None:
    """Ready from now on, and while there is a pool, until cancelled; `tell` that it changed."""
    cluster, pool = picker.members.cluster, picker.settings.pool_name
    picker.ready = cluster is None or cluster.ready
    tell()
    while cluster is not None:
        await cluster.until_moved()
        if picker.ready != cluster.ready:
            picker.ready = cluster.ready
            tell()
            if cluster.ready:
                log.info("ready again", pool=pool)
            else:
                log.warning("not ready any more", pool=pool, why=cluster.why_not)


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
