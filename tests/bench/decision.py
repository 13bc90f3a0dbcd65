"""CPU time of one decision, in process and without a transport: `python -m tests.bench.decision`.

Prints microseconds of CPU per decision (all threads) for some prompts and pool sizes: parsing,
keys, look-up, five scorers, charge and release. Prompts repeat a prefix and differ in their tail.
"""

import asyncio
import time
from random import Random

import msgspec

from epp.framework import EndpointId
from epp.request.exchange import Route
from epp.state.endpoints import Member
from tests.fakes.desk import POOL, Desk, open_desk, post

CASES = (("text", 200), ("text", 4_000), ("text", 36_000), ("ids", 1_000), ("ids", 8_000))
POOLS = (1, 4, 16, 64, 256)
DECISIONS = 400


def bodies(kind: str, size: int, count: int) -> list[bytes]:
    chance = Random(1)
    head = [chance.randrange(50_000) for _ in range(size // 2)]
    made = []
    for _ in range(count):
        ids = head + [chance.randrange(50_000) for _ in range(size - size // 2)]
        prompt: object = ids if kind == "ids" else " ".join(map(str, ids))[:size]
        made.append(msgspec.json.encode({"model": "m", "prompt": prompt, "max_tokens": 64}))
    return made


async def decide_all(desk: Desk, made: list[bytes]) -> float:
    """Seconds of CPU for one decision of each body."""
    begin = time.process_time()
    for body in made:
        route = await desk.director.decide(post(body))
        assert isinstance(route, Route)
        route.progress.response_headers(200, None)
        route.progress.body(1)
        route.progress.finished()
    return time.process_time() - begin


async def main() -> None:
    print(f"{'prompt':>14} " + " ".join(f"{count:>4} pods" for count in POOLS))
    for kind, size in CASES:
        unit = "bytes" if kind == "text" else "ids"
        row = [f"{size:>8} {unit:<5}"]
        for count in POOLS:
            async with open_desk(1) as desk:
                desk.members = [
                    Member(id=EndpointId(POOL, f"pod-{n}", 8000), address=f"10.0.{n}.1:8000")
                    for n in range(count)
                ]
                desk.pool.replace(desk.members, desk.now)
                desk.report([0] * count)
                await decide_all(desk, bodies(kind, size, 20))
                spent = await decide_all(desk, bodies(kind, size, DECISIONS))
            row.append(f"{spent / DECISIONS * 1e6:>9.0f}")
        print(" ".join(row))
    print("microseconds of CPU per decision")


if __name__ == "__main__":
    asyncio.run(main())
