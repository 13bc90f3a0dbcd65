"""Limits of what carries out the pulls of a simulated engine."""

import asyncio
import random
from collections.abc import Sequence

from epp.sim.engine import Engine
from epp.sim.hashing import Content
from epp.sim.serving.driver import Driver
from epp.sim.serving.faults import FaultBox
from epp.sim.serving.puller import KNOWN_ENGINES, MAX_RETURNS, Puller
from epp.sim.serving.side_channel import Peers, PullError
from epp.sim.settings import EngineSettings
from epp.sim.submission import Pull, Step, Submission
from epp.sim.transfer import PullAsk, Transfer
from tests.fakes.waiting import until


class Wire(Peers):
    """Other engines that answer, or refuse, or take for ever."""

    def __init__(self) -> None:
        self.shaken: list[str] = []
        self.handed_back = 0
        self.beats: list[list[str]] = []
        self.gone = False
        self.free = asyncio.Event()

    async def shake(self, ask: PullAsk) -> None:
        self.shaken.append(ask.engine_id)
        if self.gone:
            raise PullError("gone")

    async def read(self, ask: PullAsk, blocks: Sequence[int]) -> list[Content]:
        return [(1, 1)] * len(blocks)

    async def hand_back(self, ask: PullAsk) -> None:
        await self.free.wait()
        self.handed_back += 1
        if self.gone:
            raise PullError("gone")

    async def beat(self, asks: Sequence[PullAsk]) -> None:
        self.beats.append([ask.request_id for ask in asks])
        if self.gone:
            raise PullError("gone")


class Ends(Driver):
    """Only notes how pulls end."""

    def __init__(self) -> None:
        self.ends: list[bool] = []
        self.engine = Engine(EngineSettings())

    def pulled(self, engine: Engine, pull: Pull, contents: Sequence[Content] | None) -> None:
        self.ends.append(contents is not None)


def ask(name: str, engine_id: str = "e") -> PullAsk:
    return PullAsk(engine_id=engine_id, request_id=name, host="h", port=1, blocks=(1,))


def step(*asks: PullAsk) -> Step:
    return Step((), (), None, pulls=tuple(Pull("x", one, (1,), 0.0) for one in asks))


SETTINGS = EngineSettings(lease_s=0.06, handshake_s=0.05)


async def test_so_many_returns_are_under_way_and_no_more() -> None:
    wire = Wire()
    async with asyncio.TaskGroup() as tg:
        puller = Puller(SETTINGS, FaultBox(random.Random(0)), wire, tg)
        for number in range(MAX_RETURNS + 1):
            puller.hand_back(ask(str(number)))
        assert puller.failed_notices == 1
        wire.free.set()
        await until(lambda: wire.handed_back == MAX_RETURNS)
        wire.gone = True
        puller.hand_back(ask("last"))
        await until(lambda: puller.failed_notices == 2)


async def test_so_many_engines_are_remembered_as_reached() -> None:
    wire, driver = Wire(), Ends()
    async with asyncio.TaskGroup() as tg:
        puller = Puller(SETTINGS, FaultBox(random.Random(0)), wire, tg)
        for number in range(KNOWN_ENGINES + 1):
            puller.carry(driver, driver.engine, step(ask("r", str(number))))
        await until(lambda: len(driver.ends) == KNOWN_ENGINES + 1)
        assert all(driver.ends)
        wire.shaken.clear()
        puller.carry(driver, driver.engine, step(ask("r", "0"), ask("r", "2")))
        await until(lambda: len(driver.ends) == KNOWN_ENGINES + 3)
        assert wire.shaken == ["0"]


async def test_an_engine_that_does_not_answer_is_tried_for_a_while() -> None:
    wire, driver = Wire(), Ends()
    wire.gone = True
    async with asyncio.TaskGroup() as tg:
        puller = Puller(SETTINGS, FaultBox(random.Random(0)), wire, tg)
        started = asyncio.get_running_loop().time()
        puller.carry(driver, driver.engine, step(ask("r")))
        await until(lambda: driver.ends)
    assert driver.ends == [False]
    assert asyncio.get_running_loop().time() - started >= SETTINGS.handshake_s


async def test_heartbeats_go_out_six_times_a_lease_for_each_engine() -> None:
    wire, driver = Wire(), Ends()
    for one in (ask("a"), ask("b"), ask("c", "other")):
        driver.engine.admit(
            Submission(id=one.request_id, prompt=[1], max_tokens=1, transfer=Transfer(pull=one)),
            0.0,
        )
    async with asyncio.TaskGroup() as tg:
        puller = Puller(SETTINGS, FaultBox(random.Random(0)), wire, tg)
        puller.start_heartbeats(driver)
        await until(lambda: len(wire.beats) >= 4)
        assert wire.beats[:2] == [["a", "b"], ["c"]]
        wire.gone = True
        await until(lambda: puller.failed_notices)
        puller.stop()
