"""Two pickers over one Redis use the engines' caches as well as one picker does."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from epp.sim.promises.client import Answer, complete
from tests.fakes.replicated_fleet import Replicated, replicated_fleet

ENGINES = 3
ENGINE_FLAGS = ("--num-blocks", "16384", "--prefill-tokens-per-s", "8000", "--max-num-seqs", "64")
"""Long prompts take long enough that others ask about them meanwhile."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of a trace."""

    at: float
    prompt: str


def trace(chance: Random, *, seconds: float, per_s: float) -> Iterator[Ask]:
    """Questions on long documents, turns of conversations, and strangers, a third of each."""
    documents = [_words(chance, 1500) for _ in range(max(2, int(seconds * per_s / 30)))]
    talks = [_words(chance, 150) for _ in range(max(2, int(seconds * per_s / 15)))]
    at = 0.0
    while at < seconds:
        match chance.randrange(3):
            case 0:
                yield Ask(at, f"{chance.choice(documents)} {_words(chance, 20)}")
            case 1:
                number = chance.randrange(len(talks))
                talks[number] += " " + _words(chance, 30)
                yield Ask(at, talks[number])
            case _:
                yield Ask(at, _words(chance, 100))
        at += chance.expovariate(per_s)


def _words(chance: Random, count: int) -> str:
    return " ".join(f"{chance.randrange(10**5):05d}" for _ in range(count))


async def reuse(fleet: Replicated, gateways: list[str], asks: list[Ask], chance: Random) -> float:
    """The share of prompt tokens that came from a cache; each request goes to any of these."""
    answers: list[Answer] = []

    async def ask(one: Ask) -> None:
        await asyncio.sleep(one.at)
        answers.append(await complete(fleet.fleet.session, chance.choice(gateways), one.prompt))

    async with asyncio.TaskGroup() as group:
        for one in asks:
            group.create_task(ask(one))
    assert [answer.status for answer in answers] == [200] * len(asks)
    return sum(one.cached_tokens for one in answers) / sum(one.prompt_tokens for one in answers)


async def compared(
    directory: Path, *, rounds: int, seconds: float, per_s: float
) -> tuple[float, float]:
    """Mean reuse with one replica and with two, by turns; nobody has seen a round's prompts."""
    one, two = 0.0, 0.0
    async with replicated_fleet(
        directory, engines=ENGINES, replicas=2, engine_flags=ENGINE_FLAGS
    ) as fleet:
        for number in range(rounds):
            for gateways in (fleet.gateways[:1], fleet.gateways):
                # The same trace but for a first word: what differs is who is asked.
                word = f"{number}-{len(gateways)}"
                asks = [
                    Ask(each.at, f"{word} {each.prompt}")
                    for each in trace(Random(number), seconds=seconds, per_s=per_s)
                ]
                found = await reuse(fleet, gateways, asks, Random(number))
                one, two = (one + found, two) if len(gateways) == 1 else (one, two + found)
    return one / rounds, two / rounds


async def test_two_replicas_reuse_as_much_as_one(tmp_path: Path) -> None:
    one, two = await compared(tmp_path, rounds=1, seconds=8.0, per_s=15.0)
    assert one > 0.4
    assert two >= 0.95 * one


@pytest.mark.long
async def test_two_replicas_reuse_within_two_percent_of_one_on_a_long_trace(tmp_path: Path) -> None:
    one, two = await compared(tmp_path, rounds=6, seconds=60.0, per_s=15.0)
    assert one > 0.4
    assert two >= 0.98 * one
