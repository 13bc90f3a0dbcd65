"""Whatever befalls engines, sidecars, the log and replicas: no replica believes what is not so.

Checked at each step: a block that a replica credits by an engine's word is held, or was until two
snapshot periods ago. At the end, once all is well again: what a replica believes of an engine is
exactly what it holds.
"""

from unittest.mock import patch

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from epp.state.store import Reader, Writer
from epp.state.store.place import Place, read_access
from epp.state.store.redis_reader import RedisReader
from epp.state.store.redis_writer import RedisWriter
from tests.fakes.lossy_redis import LossyClient, LossyServer
from tests.fakes.state_world import CHAINS, LENGTH, POOL, SNAPSHOT_S, World

ENGINES = st.integers(0, 1)
CHAIN = st.integers(0, CHAINS - 1)
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""A shorter story is not worth the minutes."""
ACCESS = read_access("redis://127.0.0.1:6379/0")


class RedisWorld(World):
    def __init__(self) -> None:
        super().__init__()
        self.server = LossyServer(self.loop.time)

    def open_writer(self) -> Writer:
        return RedisWriter(ACCESS, POOL)

    def open_reader(self) -> Reader:
        ids = [engine.id for engine in self.engines]
        return RedisReader(ACCESS, POOL, members=lambda: ids, rng=self.rng)

    async def open(self) -> LossyClient:
        await self.server.flowing.wait()
        if not self.server.is_up:
            raise ConnectionRefusedError
        return LossyClient(self.server)


class StatePath(RuleBasedStateMachine):
    """What may befall a pool around a Redis."""

    @initialize()
    def begin(self) -> None:
        self.world = RedisWorld()
        self.patch = patch.object(Place, "open", self.world.open)
        self.patch.start()
        self.world.begin()

    @rule(engine=ENGINES, chain=CHAIN, length=st.integers(1, LENGTH))
    def store(self, engine: int, chain: int, length: int) -> None:
        frame = self.world.engines[engine].store(chain, length)
        self.world.sidecars[engine].hear(frame)

    @rule(engine=ENGINES, chain=CHAIN, place=st.integers(0, LENGTH - 1))
    def evict(self, engine: int, chain: int, place: int) -> None:
        frame = self.world.engines[engine].evict(chain, place)
        self.world.sidecars[engine].hear(frame)

    @rule(engine=ENGINES, chain=CHAIN, place=st.integers(0, LENGTH - 1), lost=st.integers(1, 20))
    def events_are_lost(self, engine: int, chain: int, place: int, lost: int) -> None:
        """Some or more than the engine keeps; the next one shows that they are missing."""
        model = self.world.engines[engine]
        for _ in range(lost):
            model.evict(chain, place)
        self.world.sidecars[engine].hear(model.store((chain + 1) % CHAINS, 1))

    @rule(engine=ENGINES)
    def clear(self, engine: int) -> None:
        self.world.sidecars[engine].hear(self.world.engines[engine].clear())

    @rule(engine=ENGINES)
    def restart_engine(self, engine: int) -> None:
        """No engine restarts within a second: its sidecar looks more often than that."""
        self.world.engines[engine].restart()
        self.pass_time(0.5)

    @rule(engine=ENGINES, down_s=st.sampled_from([0.0, 0.5, 15.0]))
    def restart_sidecar(self, engine: int, down_s: float) -> None:
        sidecar = self.world.sidecars[engine]
        self.world.run(sidecar.stop())
        self.pass_time(down_s)
        self.world.start(sidecar)

    @rule(seconds=st.sampled_from([0.01, 0.3, 1.0, 3.0, 12.0]))
    def pass_time(self, seconds: float) -> None:
        while seconds > 0:
            self.world.pass_time(min(seconds, 1.0))
            self.nothing_false_is_credited_for_long()
            seconds -= 1.0

    @rule(replica=st.integers(0, 2))
    def replica_is_slow(self, replica: int) -> None:
        replicas = self.world.replicas
        flowing = replicas[replica % len(replicas)].flowing
        flowing.clear() if flowing.is_set() else flowing.set()

    @rule()
    def replica_joins(self) -> None:
        if len(self.world.replicas) < 3:
            self.world.join()

    @rule()
    def redis_stalls_or_goes_on(self) -> None:
        flowing = self.world.server.flowing
        flowing.clear() if flowing.is_set() else flowing.set()

    @rule()
    def redis_goes_or_comes(self) -> None:
        self.world.server.is_up = not self.world.server.is_up

    @rule(lost=st.integers(0, 12), skew_ms=st.sampled_from([-5000, -50, 0, 50, 5000]))
    def redis_fails_over(self, lost: int, skew_ms: int) -> None:
        self.world.server.fail_over(lost, skew_ms)

    @rule()
    def redis_is_emptied(self) -> None:
        self.world.server.empty()

    @rule(keep=st.integers(0, 3))
    def redis_trims(self, keep: int) -> None:
        self.world.server.trim(keep)

    @invariant()
    def nothing_false_is_credited_for_long(self) -> None:
        if not hasattr(self, "world"):
            return
        now = self.world.loop.time()
        for replica in self.world.replicas:
            for engine in self.world.engines:
                for chain in range(CHAINS):
                    credit = replica.credit(engine, chain)
                    for place in range(engine.depth(chain), credit):
                        gone_s = now - engine.left_at.get((chain, place), float("-inf"))
                        assert (chain, place) in engine.cached or gone_s <= 2 * SNAPSHOT_S

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self._all_is_well_again()
            for replica in self.world.replicas:
                for sidecar in self.world.sidecars:
                    engine = sidecar.engine
                    assert replica.precise(engine) is not sidecar.mirror.partial
                    for chain in range(CHAINS):
                        credit, depth = replica.credit(engine, chain), engine.depth(chain)
                        assert credit == depth or (credit < depth and not replica.precise(engine))
        finally:
            self.world.end()
            self.patch.stop()

    def _all_is_well_again(self) -> None:
        server = self.world.server
        server.is_up = True
        server.flowing.set()
        for replica in self.world.replicas:
            replica.flowing.set()
        self.pass_time(5.0)
        for engine, sidecar in zip(self.world.engines, self.world.sidecars, strict=True):
            sidecar.hear(engine.store(0, 1))  # its sequence shows what was missed
        self.pass_time(45.0)


StatePath.TestCase.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None, phases=PHASES
)
TestStatePath = pytest.mark.timeout(300)(StatePath.TestCase)
