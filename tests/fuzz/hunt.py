"""Fuzzing guided by coverage: an input that takes a new way through the code has offspring."""

import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from random import Random
from types import FrameType

from tests.fuzz.edges import Edges
from tests.fuzz.mutations import bytes_from
from tests.timing import scaled

ROOT = Path(__file__).parents[2]
HANG_S = 5.0
"""No input that fuzzing makes may take longer, without the machine's scale."""
YOUTH = 3
"""How much more often the inputs found last have children: the exponent of a uniform choice."""

Mutation = Callable[[bytes, Sequence[bytes], Random], bytes]


class HangError(Exception):
    """An input took too long."""


@dataclass(frozen=True, slots=True)
class Target:
    """One thing that must take any input."""

    name: str
    run: Callable[[bytes], object]
    """Raises for a fault only: what the product promises to raise is not passed on."""
    seeds: Sequence[bytes]
    watched: Sequence[str]
    """Where coverage counts: files or folders, relative to the root of the tree."""
    mutate: Mutation = bytes_from


@dataclass(slots=True)
class Found:
    """What a hunt has come to."""

    target: str
    runs: int = 0
    edges: int = 0
    corpus: list[bytes] = field(default_factory=list[bytes])
    crashes: dict[str, tuple[bytes, str]] = field(default_factory=dict[str, tuple[bytes, str]])
    """By the place where it was raised: the shortest input, and the traceback."""


def hunt(
    target: Target, *, go_on: Callable[[int], bool], chance: Random, seeds: Iterable[bytes] = ()
) -> Found:
    """Fuzz one target while `go_on(runs)` says so. Its seeds, and `seeds` besides, come first."""
    edges = Edges(ROOT / each for each in target.watched)
    found = Found(target.name)
    waiting = list(dict.fromkeys((*target.seeds, *seeds)))
    while waiting or go_on(found.runs):
        data = waiting.pop() if waiting else _child(target, found.corpus, chance)
        found.runs += 1
        fresh, fault = _try(target, edges, data)
        if fault is not None:
            place, text = fault
            known = found.crashes.get(place)
            if known is None or len(data) < len(known[0]):
                found.crashes[place] = (data, text)
        elif fresh or not found.corpus:
            found.corpus.append(data)
    found.edges = len(edges.seen)
    return found


def _child(target: Target, corpus: Sequence[bytes], chance: Random) -> bytes:
    if not corpus:
        return target.mutate(b"", (), chance)
    parent = corpus[-1 - int(len(corpus) * chance.random() ** YOUTH)]
    return target.mutate(parent, corpus, chance)


def _try(target: Target, edges: Edges, data: bytes) -> tuple[int, tuple[str, str] | None]:
    """How many edges were new, and the fault, if it is one."""
    before = signal.signal(signal.SIGALRM, _hangs)
    signal.setitimer(signal.ITIMER_REAL, scaled(HANG_S))
    try:
        return edges.new(lambda: target.run(data)), None
    except Exception as error:  # noqa: BLE001  whatever comes out is what we are looking for
        return 0, (_place(error), traceback.format_exc())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _hangs(_: int, __: FrameType | None) -> None:
    raise HangError("took too long")


def _place(error: BaseException) -> str:
    """Kind and innermost line of ours: two crashes with the same are one."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [each for each in frames if each.filename.startswith(str(ROOT))]
    where = f"{ours[-1].filename}:{ours[-1].lineno}" if ours and not _is_hang(error) else ""
    return f"{type(error).__name__} {where}"


def _is_hang(error: BaseException) -> bool:
    return isinstance(error, HangError)  # it is raised wherever the clock finds us


def until(deadline: float) -> Callable[[int], bool]:
    """Go on until this moment of the monotonic clock."""
    return lambda _: time.monotonic() < deadline


def keep(found: Found, folder: Path) -> list[str]:
    """Write each crash into `folder`; gives what to tell, with the command that repeats it."""
    told = []
    for place, (data, text) in found.crashes.items():
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{found.target}-{sha256(data).hexdigest()[:12]}"
        path.write_bytes(data)
        told.append(
            f"CRASH   {found.target}: {place}\n{text}"
            f"again:  {Path(sys.executable)} -m tests.fuzz --again {found.target} {path}"
        )
    return told
