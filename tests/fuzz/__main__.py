"""`python -m tests.fuzz --seconds 60`: all targets together for so long, on two processes.

Ends with 1 when any input made a target fail; each such input lies in `.fuzz/`, with the command
that repeats it.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random, SystemRandom

from tests.fuzz.hunt import ROOT, Found, Target, hunt, keep, until
from tests.fuzz.parsers import PARSERS
from tests.fuzz.streams import STREAM

TARGETS = {target.name: target for target in (STREAM, *PARSERS)}
SHARES = {STREAM.name: 8.0, "rename": 4.0, "usage": 2.0}
"""How much more time than one parser a target gets."""
PROCESSES = 2
FOLDER = ROOT / ".fuzz"


def main() -> int:
    options = _options()
    if options.again:
        name, path = options.again
        TARGETS[name].run(Path(path).read_bytes())
        print("nothing happened")
        return 0
    chosen = [TARGETS[options.target]] if options.target else list(TARGETS.values())
    seed = options.seed or SystemRandom().randrange(10**6)
    print(f"{len(chosen)} targets, {options.seconds} s in all; --seed {seed} repeats the choices")
    with ProcessPoolExecutor(PROCESSES) as pool:
        jobs = [
            pool.submit(_hunt, name, seconds, f"{seed} {name}")
            for name, seconds in _times(chosen, options.seconds).items()
        ]
        found = [job.result() for job in jobs]
    crashed = [told for each in found for told in keep(each, FOLDER)]
    print(f"\n{sum(each.runs for each in found)} inputs, {len(crashed)} crashes")
    print("\n".join(crashed))
    return int(bool(crashed))


def _times(targets: Sequence[Target], seconds: float) -> dict[str, float]:
    """Seconds for each target, the longest first."""
    shares = {target.name: SHARES.get(target.name, 1.0) for target in targets}
    processes = min(PROCESSES, len(targets))
    unit = seconds * processes / sum(shares.values())
    return {
        name: min(seconds, share * unit)
        for name, share in sorted(shares.items(), key=lambda item: -item[1])
    }


def _hunt(name: str, seconds: float, seed: str) -> Found:
    found = hunt(TARGETS[name], go_on=until(time.monotonic() + seconds), chance=Random(seed))
    print(
        f"{name:32} {found.runs:8} inputs {found.edges:5} edges "
        f"{len(found.corpus):4} kept {len(found.crashes):2} crashes",
        flush=True,
    )
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--target", choices=sorted(TARGETS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", nargs=2, metavar=("TARGET", "FILE"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
