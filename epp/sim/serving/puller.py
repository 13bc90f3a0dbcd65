"""Carries out what a decode engine wants from prefill engines: pulls, returns and heartbeats.

A pull first makes sure that the other engine lives, then takes the time that the transfer costs,
and reads at the end of it. An engine that was never reached is tried for `handshake_s`; one that
was reached before and does not answer has failed at once.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine, Sequence

from epp.sim.engine import Engine
from epp.sim.hashing import Content
from epp.sim.serving.driver import Driver
from epp.sim.serving.faults import FaultBox
from epp.sim.serving.side_channel import Peers, PullError, RefusedError
from epp.sim.settings import EngineSettings
from epp.sim.submission import Pull, Step
from epp.sim.transfer import PullAsk

RETRY_S = 0.2
KNOWN_ENGINES = 1024
"""Lives of other engines that are remembered as reached."""
MAX_RETURNS = 256
"""Messages under way that blocks are not wanted; more are not sent, and their leases end."""


class Puller:
    """The pulls of one engine server. Its tasks live in the server's group."""

    def __init__(
        self,
        settings: EngineSettings,
        faults: FaultBox,
        peers: Peers,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._settings = settings
        self._faults = faults
        self._peers = peers
        self._group = tasks
        self._tasks: set[asyncio.Task[None]] = set()
        self._known: OrderedDict[str, None] = OrderedDict()
        self._returning = 0
        self.failed_notices = 0
        """Returns and heartbeats that did not reach the other engine."""

    def carry(self, driver: Driver, engine: Engine, step: Step) -> None:
        """Start what a step of the engine asked for."""
        for pull in step.pulls:
            self._start(self._pull(driver, engine, pull))
        for ask in step.returns:
            self.hand_back(ask)

    def hand_back(self, ask: PullAsk) -> None:
        """Tell the other engine that nobody will read these blocks."""
        if ask.stored:
            return  # nobody keeps them
        if self._returning < MAX_RETURNS:
            self._returning += 1
            self._start(self._return(ask))
        else:
            self.failed_notices += 1

    def start_heartbeats(self, driver: Driver) -> None:
        self._start(self._heartbeats(driver))

    def stop(self) -> None:
        """Cancel everything under way."""
        for task in self._tasks:
            task.cancel()

    def _start(self, work: Coroutine[object, object, None]) -> None:
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pull(self, driver: Driver, engine: Engine, pull: Pull) -> None:
        contents: list[Content] | None = None
        try:
            if not pull.ask.stored:
                await self._reach(pull.ask)
            await asyncio.sleep(pull.duration_s)
            if self._faults.fails_pull():
                pass
            elif pull.ask.stored:
                contents = [pull.ask.stored[block] for block in pull.blocks]
            else:
                contents = await self._peers.read(pull.ask, pull.blocks)
        except PullError:
            pass  # told to the engine, which counts it
        driver.pulled(engine, pull, contents)

    async def _reach(self, ask: PullAsk) -> None:
        """Make sure that the other engine is there. Raises PullError when it is not."""
        if ask.engine_id in self._known:
            self._known.move_to_end(ask.engine_id)
            return
        last: PullError | None = None
        try:
            async with asyncio.timeout(self._settings.handshake_s):
                while True:
                    try:
                        await self._peers.shake(ask)
                        break
                    except RefusedError:
                        raise
                    except PullError as error:
                        last = error
                    await asyncio.sleep(RETRY_S)
        except TimeoutError:
            raise last or PullError("another engine was not reached in time") from None
        self._known[ask.engine_id] = None
        if len(self._known) > KNOWN_ENGINES:
            self._known.popitem(last=False)

    async def _return(self, ask: PullAsk) -> None:
        try:
            await self._peers.hand_back(ask)
        except PullError:
            self.failed_notices += 1
        finally:
            self._returning -= 1

    async def _heartbeats(self, driver: Driver) -> None:
        while True:
            await asyncio.sleep(self._settings.lease_s / 6)
            for asks in _by_engine(driver.engine.wanted_elsewhere()):
                try:
                    await self._peers.beat(asks)
                except PullError:
                    self.failed_notices += 1


def _by_engine(asks: Sequence[PullAsk]) -> list[list[PullAsk]]:
    groups: dict[tuple[str, str, int], list[PullAsk]] = {}
    for ask in asks:
        groups.setdefault((ask.engine_id, ask.host, ask.port), []).append(ask)
    return list(groups.values())
