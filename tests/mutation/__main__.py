"""`make test-mutation`: how many small changes of the stream core its tests notice.

Prints each change that they do not. Ends with 1 when fewer than `ENOUGH` of them are noticed.
MUTATION_ONLY=answer tries one module alone.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.guards.proof import Tree

ROOT = Path(__file__).parents[2]
MODULES = ("stream", "answer", "modes", "intake", "replies", "subset")
"""The stream core: modules of `epp.request`."""
TESTS = (
    "tests/unit/test_stream_*.py",
    "tests/unit/test_replies.py",
    "tests/unit/test_subset.py",
    "tests/faults/test_stream_faults.py",
    "tests/property/test_stream_orders.py",
)
"""Cheap ones first: most changes are noticed by the first of them."""
ENOUGH = 0.85
PARALLEL = 2


def main() -> int:
    if "--here" in sys.argv:
        return _here()
    # On a copy: the tests run for minutes, and nobody should have to keep still meanwhile.
    with tempfile.TemporaryDirectory(prefix="mutation-") as scratch:
        tree = Tree(ROOT, Path(scratch) / "tree")
        env = os.environ | {"PYTHONPATH": str(tree.root)}
        command = [sys.executable, "-m", "tests.mutation", "--here"]
        return subprocess.run(command, cwd=tree.root, env=env, check=False).returncode


def _here() -> int:
    from tests.mutation.mutants import mutants
    from tests.mutation.trial import prepare, trials, usual_s

    tests = [str(path) for pattern in TESTS for path in sorted(Path().glob(pattern))]
    prepare()
    usual = usual_s(tests)
    if usual is None:
        print("the tests fail without any change: nothing can be said")
        return 1
    chosen = [name for name in MODULES if os.environ.get("MUTATION_ONLY", name) == name]
    paths = {f"epp.request.{name}": Path(f"epp/request/{name}.py") for name in chosen}
    work = [
        (module, mutant, tests)
        for module, path in paths.items()
        for mutant in mutants(path.read_text(), str(path))
    ]
    print(f"{len(work)} changes; the tests take {usual:.1f} s", flush=True)
    begun = time.monotonic()
    all_of, killed = Counter[str](), Counter[str]()
    for trial in trials(work, parallel=PARALLEL, limit_s=20 + 5 * usual):
        all_of[trial.module] += 1
        killed[trial.module] += trial.killed
        if not trial.killed:
            print(f"SURVIVES {paths[trial.module]}:{trial.mutant}", flush=True)
    for module in paths:
        print(f"{module:24} {killed[module]:4} of {all_of[module]:4}")
    score = killed.total() / all_of.total()
    print(f"mutation score {100 * score:.1f} % in {time.monotonic() - begun:.0f} s")
    return int(score < ENOUGH)


if __name__ == "__main__":
    sys.exit(main())
