"""Redis is killed under load, and comes back empty: no request notices."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from epp.sim.promises.client import Answer, complete
from tests.fakes.replicated_fleet import Replicated, replicated_fleet
from tests.timing import scaled

ENGINES = 3
CONVERSATIONS = 12
FIRST_WORDS, MORE_WORDS = 200, 40
PER_S = 12.0
ENGINE_FLAGS = ("--decode-step-s", "0.001", "--num-blocks", "4096")


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a conversation."""

    sent: float
    answer: Answer
    took_s: float
    engine_s: float
    """What an equal one took that went to an engine directly at the same time."""

    @property
    def added_s(self) -> float:
        """By Envoy, picker and sidecar."""
        return self.took_s - self.engine_s


class Talks:
    """Conversations of which another turn comes each time; every turn repeats the ones before."""

    def __init__(self, fleet: Replicated, chance: Random) -> None:
        self.turns: list[Turn] = []
        self._fleet = fleet
        self._chance = chance
        self._contexts = [self._words(FIRST_WORDS) for _ in range(CONVERSATIONS)]
        self._running = True

    async def run(self) -> None:
        async with asyncio.TaskGroup() as talks:
            for number in range(CONVERSATIONS):
                talks.create_task(self._talk(number))

    def stop(self) -> None:
        self._running = False

    def since(self, at: float, until: float = float("inf")) -> list[Turn]:
        return [turn for turn in self.turns if at <= turn.sent < until]

    async def until_reuse(self, least: float, within_s: float) -> float:
        """Wait until the last turns reuse so much; how long that took."""
        began = time.monotonic()
        async with asyncio.timeout(within_s):
            while True:
                lately = self.since(max(began, time.monotonic() - 3.0))
                if len(lately) >= 2 * CONVERSATIONS and reuse(lately) >= least:
                    return time.monotonic() - began
                await asyncio.sleep(0.1)

    async def _talk(self, number: int) -> None:
        while self._running:
            await asyncio.sleep(self._chance.uniform(0.5, 1.5) * CONVERSATIONS / PER_S)
            self._contexts[number] += " " + self._words(MORE_WORDS)
            if len(self._contexts[number]) > 40 * FIRST_WORDS:
                self._contexts[number] = self._words(FIRST_WORDS)
            await self._turn(self._contexts[number])

    async def _turn(self, prompt: str) -> None:
        fleet, sent = self._fleet.fleet, time.monotonic()
        answer = await complete(fleet.session, self._fleet.gateways[0], prompt)
        took_s = time.monotonic() - sent
        # The same prompt again where it now is: what an engine takes for it, on this machine now.
        pods = [member.name for member in fleet.settings.members]
        where = fleet.engine(pods.index(answer.pod)) if answer.pod in pods else fleet.engine(0)
        began = time.monotonic()
        await complete(fleet.session, where, prompt)
        self.turns.append(Turn(sent, answer, took_s, time.monotonic() - began))

    def _words(self, count: int) -> str:
        return " ".join(f"{self._chance.randrange(10**6):06d}" for _ in range(count))


def reuse(turns: list[Turn]) -> float:
    """The share of prompt tokens that came from a cache."""
    asked = sum(turn.answer.prompt_tokens for turn in turns)
    return sum(turn.answer.cached_tokens for turn in turns) / asked if asked else 0.0


def p99(seconds: list[float]) -> float:
    return sorted(seconds)[int(0.99 * (len(seconds) - 1))]


@pytest.mark.parametrize(
    ("rounds", "phase_s"),
    [
        pytest.param(1, 4.0, id="once"),
        pytest.param(8, 15.0, id="again-and-again", marks=pytest.mark.long),
    ],
)
async def test_a_redis_that_dies_costs_no_answer_no_time_and_no_lasting_reuse(
    rounds: int, phase_s: float, tmp_path: Path
) -> None:
    """It is killed and started again so many times, under load."""
    calm: list[Turn] = []
    alone: list[Turn] = []
    async with replicated_fleet(tmp_path, engines=ENGINES, engine_flags=ENGINE_FLAGS) as fleet:
        talks = Talks(fleet, Random(7))
        async with asyncio.TaskGroup() as group:
            group.create_task(talks.run())
            await asyncio.sleep(2.0)  # the first turns repeat nothing
            for _ in range(rounds):
                began = time.monotonic()
                await asyncio.sleep(phase_s)
                died = time.monotonic()
                await fleet.fleet.supervisor.kill("redis")
                await asyncio.sleep(phase_s)
                back = time.monotonic()
                before = talks.since(began, died)
                calm += before
                alone += talks.since(died, back)
                await fleet.fleet.supervisor.restart("redis")
                await talks.until_reuse(0.95 * reuse(before), scaled(10.0))
                await fleet.until_each_knows_all()
            talks.stop()
    assert len(calm) >= 10
    assert len(alone) >= 10
    assert [turn.answer.status for turn in talks.turns] == [200] * len(talks.turns)
    assert reuse(calm) > 0.5
    usual = p99([turn.added_s for turn in calm])
    assert p99([turn.added_s for turn in alone]) <= 1.2 * usual + scaled(0.02)
