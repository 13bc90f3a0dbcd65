"""`make test-guards`: disable each protection in turn; the test that it belongs to must fail.

GUARDS_FOR_S=200 tries them in a random order and begins no further handful after that many
seconds, GUARDS_SEED repeats an order, GUARDS_ONLY=A04 tries what matches. Ends with 1 when any
guard does not guard, or when the list is not whole.
"""

import os
import queue
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random, SystemRandom

from tests.guards import entries
from tests.guards.entries import Guard
from tests.guards.proof import Proof, Tree, Verdict

ROOT = Path(__file__).parents[2]
PARALLEL = 2
HANDFUL = 8
"""Guards between two looks at the clock: what their tests take is measured in one run for all."""


def main() -> int:
    listed = entries.read(ROOT)
    complaints = entries.faults_of(ROOT, listed)
    for complaint in complaints:
        print(f"LIST    {complaint}")
    chosen, limit_s = _chosen([guard for guard in listed.guards if _usable(guard)])
    begun = time.monotonic()
    red: list[str] = []
    proofs: list[Proof] = []
    with tempfile.TemporaryDirectory(prefix="guards-") as scratch:
        trees = [Tree(ROOT, Path(scratch) / str(number)) for number in range(PARALLEL)]
        if not all(tree.imports_itself() for tree in trees):
            print("the copy of the tree is not what tests import: nothing can be shown")
            return 1
        for handful in _handfuls(chosen, limit_s):
            tests = list(dict.fromkeys(guard.test for guard in handful))
            usual, output = trees[0].usual(tests)
            failing = [test for test in tests if test not in usual]
            if failing:
                print(f"{output[-6000:]}\n")
            red += failing
            proofs += _try(trees, [guard for guard in handful if guard.test in usual], usual)
            if limit_s is not None and time.monotonic() - begun > limit_s:
                break
    bad = [proof for proof in proofs if proof.verdict is not Verdict.GUARDS]
    for proof in bad:
        print(f"\n--- {proof.guard.test}\n{proof.output[-3000:]}")
    guarding = len(proofs) - len(bad)
    took = time.monotonic() - begun
    print(
        f"\n{guarding} of {len(proofs)} guards guard, {len(listed.guards)} are listed, {took:.0f} s"
    )
    for proof in bad:
        print(f"NOT ONE {proof.guard.name}: {proof.verdict.value}")
    for test in red:
        print(f"RED     {test}: fails with its protection in place")
    if complaints:
        print(f"{len(complaints)} faults of the list, see above")
    return int(bool(bad or red or complaints))


def _usable(guard: Guard) -> bool:
    path = ROOT / guard.file
    return path.is_file() and path.read_text().count(guard.find) == 1


def _chosen(guards: list[Guard]) -> tuple[list[Guard], float | None]:
    """Those that GUARDS_ONLY matches, and the seconds that they get.

    With a limit of time their order is random, and its seed printed.
    """
    only = os.environ.get("GUARDS_ONLY", "")
    guards = [guard for guard in guards if only in guard.test]
    limit = os.environ.get("GUARDS_FOR_S")
    if limit is None:
        return guards, None
    seed = os.environ.get("GUARDS_SEED") or str(SystemRandom().randrange(10**6))
    print(f"guards in a random order for {limit} s; GUARDS_SEED={seed} repeats it")
    return Random(seed).sample(guards, len(guards)), float(limit)


def _handfuls(guards: list[Guard], limit_s: float | None) -> list[list[Guard]]:
    """All at once where there is no limit of time."""
    size = HANDFUL if limit_s is not None else max(1, len(guards))
    return [guards[begin : begin + size] for begin in range(0, len(guards), size)]


def _try(trees: list[Tree], guards: list[Guard], usual: Mapping[str, float]) -> list[Proof]:
    free: queue.Queue[Tree] = queue.Queue()
    for tree in trees:
        free.put(tree)

    def attempt(guard: Guard) -> Proof:
        tree = free.get()
        try:
            proof = tree.disable(guard, usual[guard.test])
        finally:
            free.put(tree)
        word = "guards " if proof.verdict is Verdict.GUARDS else "SLEEPS "
        print(f"{word} {proof.took_s:5.1f} s  {guard.name}  ({guard.file})", flush=True)
        return proof

    with ThreadPoolExecutor(len(trees)) as pool:
        return list(pool.map(attempt, guards))


if __name__ == "__main__":
    sys.exit(main())
