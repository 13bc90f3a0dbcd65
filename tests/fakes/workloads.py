"""What clients send: requests with their times, for a fleet in virtual time."""

import itertools
from random import Random

from tests.fakes.virtual_fleet import Ask


def ids(chance: Random, count: int) -> tuple[int, ...]:
    """A prompt that nobody has seen."""
    return tuple(chance.randrange(50_000) for _ in range(count))


def arrivals(chance: Random, per_s: float, count: int) -> list[float]:
    """Times at random, so many a second on average."""
    gaps = (chance.expovariate(per_s) for _ in range(count))
    return list(itertools.accumulate(gaps))


def burst(chance: Random, count: int, tokens: int, *, at: float = 0.0, equal: bool) -> list[Ask]:
    """Requests half a millisecond apart, of one prompt or each of its own."""
    same = ids(chance, tokens)
    return [
        Ask(at + 0.0005 * number, same if equal else ids(chance, tokens), 64)
        for number in range(count)
    ]


def hot(chance: Random, per_s: float, count: int, *, head: int = 4096) -> list[Ask]:
    """One system prompt before everything."""
    system = ids(chance, head)
    return [
        Ask(at, system + ids(chance, 128 + chance.randrange(256)), 16 + chance.randrange(200))
        for at in arrivals(chance, per_s, count)
    ]


def shared(chance: Random, per_s: float, count: int, *, heads: int = 40) -> list[Ask]:
    """Many system prompts, short and long; the client allows more than is answered."""
    known = [ids(chance, chance.choice((512, 1024, 2048, 6000))) for _ in range(heads)]
    return [
        Ask(
            at,
            chance.choice(known) + ids(chance, 64 + chance.randrange(512)),
            16 + chance.randrange(250),
            limit=1024,
        )
        for at in arrivals(chance, per_s, count)
    ]


def chats(chance: Random, per_s: float, count: int, *, turns: int = 5) -> list[Ask]:
    """Conversations whose every turn repeats the ones before."""
    asks: list[Ask] = []
    for begin in arrivals(chance, per_s, count):
        at, context = begin, ids(chance, 300 + chance.randrange(1500))
        for _ in range(chance.randrange(1, turns + 1)):
            asks.append(Ask(at, context, 16 + chance.randrange(200)))
            context += ids(chance, 100 + chance.randrange(700))
            at += 3.0 + chance.expovariate(0.2)
    return sorted(asks, key=lambda ask: ask.at)


def documents(chance: Random, per_s: float, count: int) -> list[Ask]:
    """Long documents that several ask about, among short questions of their own."""
    known = [ids(chance, chance.choice((8000, 14_000))) for _ in range(12)]
    return [
        Ask(
            at,
            (chance.choice(known) if chance.random() < 0.35 else ())
            + ids(chance, 100 + chance.randrange(400)),
            16 + chance.randrange(200),
        )
        for at in arrivals(chance, per_s, count)
    ]


def strangers(chance: Random, per_s: float, count: int) -> list[Ask]:
    """Nothing in common; sizes have a long tail."""
    return [
        Ask(
            at,
            ids(chance, int(min(8000.0, 64 + chance.paretovariate(1.1) * 200))),
            int(min(600.0, 8 + chance.expovariate(1 / 120))),
        )
        for at in arrivals(chance, per_s, count)
    ]
