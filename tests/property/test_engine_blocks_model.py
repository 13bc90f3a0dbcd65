"""EngineBlocks against a naive model that looks at everything each time."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from epp.state.blocks import seed_of, token_keys
from epp.state.engine_blocks import EngineBlocks
from epp.state.entries import Entries
from epp.state.events import Event
from tests.fakes.kv_publisher import CLEARED, removed, stored

OWN = 64
MODEL = "m"
Path = tuple[int, ...]
"""A prefix as the choices made at each engine block."""


def block_tokens(depth: int, choice: int, size: int) -> list[int]:
    """Choices 0 and 1 differ in the last token only, so that they may share own blocks."""
    head = 0 if choice < 2 else choice
    return [*(depth * 1000 + head * 100 for _ in range(size - 1)), choice]


def prompt(path: Path, size: int) -> list[int]:
    return [t for depth, choice in enumerate(path) for t in block_tokens(depth, choice, size)]


@dataclass
class Store:
    path: Path
    start: int
    """Engine blocks of the path that the event doesn't carry: its parent is the one before."""


@dataclass
class Remove:
    paths: list[Path]


Step = Store | Remove | None
"""None clears."""


@st.composite
def some_path(draw: st.DrawFn) -> Path:
    """Mostly the main path, at most one turn off it: so steps meet often."""
    length = draw(st.integers(1, 7))
    turn, choice = draw(st.integers(0, 13)), draw(st.integers(1, 2))
    return tuple(choice if at == turn else 0 for at in range(length))


paths = some_path()
steps = st.one_of(
    st.builds(Store, paths, st.just(0)),
    st.builds(Store, paths, st.integers(0, 6)),
    st.builds(Remove, st.lists(paths, min_size=1, max_size=3)),
    st.sampled_from([0, 0, 0, 1]).map(lambda clear: None if clear else Remove([(0,)])),
)


class Naive:
    def __init__(self, size: int) -> None:
        self.size = size
        self.references: dict[Path, int] = {}
        self.waiting: dict[Path, int] = {}
        """Blocks without a parent."""
        self.orphans = 0

    def apply(self, step: Step) -> None:
        if step is None:
            self.references.clear()
            self.waiting.clear()
        elif isinstance(step, Remove):
            for path in step.paths:
                for held in (self.references, self.waiting):
                    if path in held:
                        held[path] -= 1
                        if not held[path]:
                            del held[path]
                        break
        else:
            start = min(step.start, len(step.path) - 1)
            for end in range(start + 1, len(step.path) + 1):
                self._store(step.path[:end])

    def _store(self, path: Path) -> None:
        if path in self.references or len(path) == 1 or path[:-1] in self.references:
            self.references[path] = self.references.get(path, 0) + 1
        else:
            self.waiting[path] = self.waiting.get(path, 0) + 1
            self.orphans += 1
        while found := [one for one in self.waiting if one[:-1] in self.references]:
            for one in found:
                self.references[one] = self.waiting.pop(one)

    def present(self) -> set[int]:
        found = set()
        for path in self.references:
            keys = token_keys(prompt(path, self.size), seed_of(MODEL), OWN)
            for at, key in enumerate(keys):
                covering = [
                    path[: block + 1]
                    for block in range(len(path))
                    if block * self.size < (at + 1) * OWN and (block + 1) * self.size > at * OWN
                ]
                # A deeper block may stand for a path whose other blocks are gone: only those that
                # cover this own block matter, and the one that completes it must be among them.
                if all(block in self.references for block in covering):
                    found.add(key)
        return found


def event_of(step: Step, size: int) -> Event:
    if step is None:
        return CLEARED
    if isinstance(step, Remove):
        return removed(*(name(path) for path in step.paths))
    start = min(step.start, len(step.path) - 1)
    hashes = [name(step.path[:end]) for end in range(start + 1, len(step.path) + 1)]
    tokens = prompt(step.path, size)[start * size :]
    return stored(hashes, tokens, size, parent=name(step.path[:start]) if start else None)


def name(path: Path) -> int | bytes:
    number = int("1" + "".join(map(str, path)))
    return number.to_bytes(32, "big") if number % 2 else number


@settings(max_examples=150)
@given(
    st.sampled_from([16, 24, 32, 48, 64, 96, 128, 200]),
    st.lists(st.lists(steps, min_size=1, max_size=4), max_size=12),
)
def test_present_keys_are_those_that_held_blocks_cover_in_full(
    size: int, batches: list[list[Step]]
) -> None:
    naive, real = Naive(size), EngineBlocks(MODEL, OWN)
    mirror: set[int] = set()
    for batch in batches:
        delta = real.apply([event_of(step, size) for step in batch])
        for step in batch:
            naive.apply(step)
        assert not set(delta.stored) & set(delta.removed)
        assert len(set(delta.stored)) == len(delta.stored)
        if delta.reset:
            assert not delta.removed
            mirror.clear()
        mirror |= set(delta.stored)
        assert set(delta.removed) <= mirror
        mirror -= set(delta.removed)
        assert mirror == set(real.present()) == naive.present()
        assert len(real.present()) == len(mirror)
        assert len(real) == len(naive.references)
        assert (real.orphans, real.waiting) == (naive.orphans, len(naive.waiting))


@given(
    st.sampled_from([16, 24, 64, 96, 200]),
    st.lists(steps, max_size=12),
    st.lists(steps, max_size=8),
)
def test_a_writer_that_restarts_knows_no_more_than_one_that_did_not(
    size: int, before: list[Step], after: list[Step]
) -> None:
    going, first = EngineBlocks(MODEL, OWN), EngineBlocks(MODEL, OWN)
    for step in before:
        going.apply([event_of(step, size)])
        first.apply([event_of(step, size)])
    again = EngineBlocks(MODEL, OWN)
    memory = Entries.unpack(first.freeze(7).entries().pack())
    assert memory.engine_seq == 7
    assert memory == first.freeze(7).entries()
    assert set(again.restore(memory).stored) == set(first.present())
    for step in after:
        for one in (going, again):
            one.apply([event_of(step, size)])
        assert set(again.present()) <= set(going.present())


@given(
    st.sampled_from([16, 32, 48, 64, 128]),
    st.lists(st.tuples(paths, st.booleans()), min_size=1, max_size=10),
)
def test_what_is_stored_and_removed_equally_often_leaves_nothing(
    size: int, told: list[tuple[Path, bool]]
) -> None:
    real = EngineBlocks(MODEL, OWN)
    held: list[Path] = []
    for path, _ in told:
        real.apply([event_of(Store(path, 0), size)])
        held += [path[:end] for end in range(1, len(path) + 1)]
    for path in sorted(held, reverse=told[0][1]):
        real.apply([event_of(Remove([path]), size)])
    assert real.present() == []
    assert len(real) == 0
    # Nothing lingers inside either: memory is that of what is held.
    for tree in real._tiers["GPU"].trees.values():
        assert not tree.nodes
        assert not tree.credited
        assert not tree._waiting
