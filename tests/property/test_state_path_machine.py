"""Whatever befalls engines, sidecars, the log and replicas: no replica believes what is not so.

Checked at each step: a block that a replica credits by an engine's word is held, or was until two
snapshot periods ago. At the end, once all is well again: what a replica believes of an engine is
exactly what it holds.
"""

import unittest
from unittest.mock import patch

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from epp.state.rules import PoolRules
from epp.state.store import Reader, Writer
from epp.state.store.memory import ServerLimits, StateServer
from epp.state.store.place import Place, read_access
from epp.state.store.port_writer import StateWriter
from epp.state.store.redis_reader import RedisReader
from epp.state.store.redis_writer import RedisWriter
from epp.state.writing.publisher import Tempo
from tests.fakes.lossy_redis import LossyClient, LossyServer
from tests.fakes.state_world import CHAINS, LENGTH, POOL, SNAPSHOT_S, ModelReplica, World
from tests.fakes.virtual_network import Network

ENGINES = st.integers(0, 1)
CHAIN = st.integers(0, CHAINS - 1)
IDLE_S = 2 * SNAPSHOT_S - PoolRules().fresh_s
"""Words that were under way for longer are never heard; see the test of the true limits."""
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


class PortWorld(World):
    """The one replica hosts the log, and whoever writes has a connection to it."""

    def __init__(self) -> None:
        super().__init__()
        self.network = Network(self.loop)

    def open_writer(self) -> Writer:
        return StateWriter("127.0.0.1", 1)

    def open_reader(self) -> Reader:
        ids = {engine.id for engine in self.engines}
        limits = ServerLimits(idle_s=IDLE_S)
        server = StateServer("127.0.0.1", 1, token=None, is_member=ids.__contains__, limits=limits)
        self.starting = self.loop.create_task(server.start())
        return server

    def restart_picker(self) -> None:
        async def restart() -> None:
            await self.replicas.pop().stop()
            self.replicas.append(ModelReplica(self, self.open_reader()))

        self.run(restart())


class StatePath(RuleBasedStateMachine):
    """What may befall a pool, whatever carries its log."""

    world: World

    def heal(self) -> None:
        """Whatever carries the log works again."""
        raise NotImplementedError

    def close(self) -> None:
        """The world has ended."""
        raise NotImplementedError

    def fill(self) -> None:
        """Stories begin where there is something to be wrong about."""
        self.world.begin()
        for engine in range(2):
            for chain in range(CHAINS - engine):
                self.store(engine, chain, LENGTH)
        self.pass_time(1.0)

    @rule(engine=ENGINES, chain=CHAIN)
    def serve(self, engine: int, chain: int) -> None:
        """What engines do most."""
        self.store(engine, chain, LENGTH)
        self.pass_time(1.0)

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

    @rule(engine=ENGINES, chain=CHAIN)
    def evict_and_go_on(self, engine: int, chain: int) -> None:
        """Whatever hides it from a replica must not do so for long."""
        self.evict(engine, chain, 0)
        self.pass_time(12.0)

    @rule(replica=st.integers(0, 2))
    def replica_is_slow(self, replica: int) -> None:
        replicas = self.world.replicas
        flowing = replicas[replica % len(replicas)].flowing
        flowing.clear() if flowing.is_set() else flowing.set()

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
            self.close()

    def _all_is_well_again(self) -> None:
        self.heal()
        for replica in self.world.replicas:
            replica.flowing.set()
        self.pass_time(5.0)
        for engine, sidecar in zip(self.world.engines, self.world.sidecars, strict=True):
            sidecar.hear(engine.store(0, 1))  # its sequence shows what was missed
        self.pass_time(45.0)


class RedisPath(StatePath):
    """Around a Redis."""

    world: RedisWorld

    @initialize()
    def begin(self) -> None:
        self.world = RedisWorld()
        self.patch = patch.object(Place, "open", self.world.open)
        self.patch.start()
        self.fill()

    def heal(self) -> None:
        self.world.server.is_up = True
        self.world.server.flowing.set()

    def close(self) -> None:
        self.patch.stop()

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


class PortPath(StatePath):
    """Around the picker's own state port."""

    world: PortWorld

    @initialize()
    def begin(self) -> None:
        self.world = PortWorld()
        network = self.world.network
        self.patch = patch.multiple(
            self.world.loop,
            create_server=network.create_server,
            create_connection=network.create_connection,
        )
        self.patch.start()
        self.fill()

    def heal(self) -> None:
        self.world.network.go_on()

    def close(self) -> None:
        self.patch.stop()

    @rule()
    def picker_restarts(self) -> None:
        self.world.restart_picker()

    @rule()
    def network_stalls_or_goes_on(self) -> None:
        network = self.world.network
        network.stall() if network.flowing.is_set() else network.go_on()

    @rule()
    def network_goes_or_comes(self) -> None:
        network = self.world.network
        network.is_up = not network.is_up
        network.cut()

    @rule()
    def connections_break(self) -> None:
        self.world.network.cut()


def _cases(path: type[StatePath], examples: int) -> type[unittest.TestCase]:
    class Case(path.TestCase):  # type: ignore[name-defined, misc]
        settings = settings(
            max_examples=examples, stateful_step_count=25, deadline=None, phases=PHASES
        )

    return Case


TestOverRedis = pytest.mark.timeout(300)(_cases(RedisPath, 15))
TestOverStatePort = pytest.mark.timeout(300)(_cases(PortPath, 15))
TestLongOverRedis = pytest.mark.long(_cases(RedisPath, 500))
TestLongOverStatePort = pytest.mark.long(_cases(PortPath, 500))


def test_a_memory_that_came_after_its_engine_restarted_is_not_gone_on_from() -> None:
    """The log kept a writer waiting for it; its last message and the new life's first one happened
    to be neighbours, and blocks of the life before were believed."""
    path = PortPath()
    try:
        path.begin()
        path.network_stalls_or_goes_on()
        path.restart_sidecar(down_s=0.5, engine=0)
        path.clear(engine=0)
        path.restart_engine(engine=0)
        path.pass_time(seconds=0.3)
        path.network_stalls_or_goes_on()
        path.events_are_lost(chain=2, engine=0, lost=13, place=2)
        path.evict_and_go_on(chain=1, engine=0)
        (replica,), engine = path.world.replicas, path.world.engines[0]
        for chain in range(CHAINS):
            assert replica.credit(engine, chain) <= engine.depth(chain)
    finally:
        path.teardown()


def test_words_that_a_network_held_back_are_not_believed_for_longer_than_two_snapshots() -> None:
    assert ServerLimits().idle_s + PoolRules().fresh_s <= 2 * Tempo().snapshot_s
