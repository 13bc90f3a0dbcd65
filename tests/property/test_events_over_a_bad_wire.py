"""A model of an engine whose messages are lost and replayed, against what the mirror holds.

At every moment the mirror may know less than the engine holds. Once all is quiet and a replay has
come through it knows exactly what the engine holds, or it knows that it does not.
"""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from epp.state.blocks import seed_of, token_keys
from epp.state.entries import Entries
from epp.state.events import Frame
from epp.state.writing.cache import CacheMirror
from tests.fakes.kv_publisher import CLEARED_MAP, payload, removed_map, stored_map

SIZE = 32
PATHS = [(0,), (0, 0), (0, 0, 0), (0, 0, 0, 0), (0, 1), (0, 1, 1), (1,), (1, 0)]

Path = tuple[int, ...]


def tokens(path: Path) -> list[int]:
    return [depth * 10 + choice for depth, choice in enumerate(path) for _ in range(SIZE)]


def name(path: Path) -> int:
    return int("1" + "".join(map(str, path)))


class Engine:
    """Holds blocks like an engine: a child only behind its parent, counted references."""

    def __init__(self, keeps: int) -> None:
        self.held: dict[Path, int] = {}
        self.seq = 0
        self.keeps = keeps
        self.buffer: list[Frame] = []

    def store(self, path: Path) -> Frame:
        """Make a prompt's blocks present, as far as they are not."""
        missing = [path[:end] for end in range(1, len(path) + 1) if path[:end] not in self.held]
        for one in missing or [path]:
            self.held[one] = self.held.get(one, 0) + 1
        first = (missing or [path])[0]
        told = stored_map(
            [name(one) for one in missing or [path]],
            tokens(path)[(len(first) - 1) * SIZE :],
            SIZE,
            parent=name(first[:-1]) if first[:-1] else None,
        )
        return self._say([told])

    def evict(self, path: Path) -> Frame:
        """Blocks go from the end of a prompt."""
        gone = [one for one in self.held if one[: len(path)] == path]
        told = []
        for one in sorted(gone, key=len, reverse=True):
            told += [removed_map([name(one)])] * self.held.pop(one)
        return self._say(told)

    def clear(self) -> Frame:
        self.held.clear()
        return self._say([CLEARED_MAP])

    def restart(self) -> None:
        self.held, self.seq, self.buffer = {}, 0, []

    def keys(self) -> set[int]:
        found: set[int] = set()
        for path in self.held:
            found.update(token_keys(tokens(path), seed_of("m")))
        return found

    def _say(self, events: list[dict[str, object]]) -> Frame:
        frame = Frame(b"kv", self.seq, payload(events))
        self.seq += 1
        self.buffer = [*self.buffer, frame][-self.keeps :]
        return frame


class World:
    def __init__(self, keeps: int, *, replays: bool) -> None:
        self.engine = Engine(keeps)
        self.now = 0.0
        self.replays = replays
        self.known: set[int] = set()
        self.mirror = self._mirror()
        self.under_way: tuple[object, list[Frame]] | None = None

    def _mirror(self) -> CacheMirror:
        mirror = CacheMirror(self._changed, replays=self.replays, clock=lambda: self.now)
        mirror.serve("m")
        return mirror

    def _changed(self, delta: object) -> None:
        if delta.reset:  # type: ignore[attr-defined]
            self.known.clear()
        self.known.update(delta.stored)  # type: ignore[attr-defined]
        self.known.difference_update(delta.removed)  # type: ignore[attr-defined]

    def hear(self, frame: Frame, *, lost: bool) -> None:
        if not lost and self.mirror.on(frame):
            self.mirror.new_life()

    def answer(self, *, breaks_off: bool) -> None:
        """The replay that is wanted: the engine's buffer at this moment."""
        wanted = self.mirror.wanted
        if wanted is None:
            return
        frames = [one for one in self.engine.buffer if one.seq >= wanted.start]
        restarted = False
        for frame in frames[: len(frames) // 2] if breaks_off else frames:
            if self.mirror.wanted is not wanted:
                return
            restarted |= self.mirror.replayed(frame)
        if self.mirror.wanted is wanted:
            restarted |= self.mirror.replay_ended(complete=not breaks_off)
        if restarted:
            self.mirror.new_life()

    def restart_writer(self, *, with_memory: bool) -> None:
        memory = Entries.unpack(self.mirror.entries().pack())
        self.mirror = self._mirror()
        if with_memory and memory.engine_seq is not None:
            self.mirror.resume(memory, memory.engine_seq)

    def settle(self) -> None:
        """Let time pass, the engine say something, and replays come through."""
        for _ in range(6):
            self.now += 100.0
            self.hear(self.engine.store((1, 0)), lost=False)
            for _ in range(4):
                self.mirror.look()
                self.answer(breaks_off=False)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("store"), st.sampled_from(PATHS), st.booleans()),
        st.tuples(st.just("store"), st.sampled_from(PATHS), st.just(False)),
        st.tuples(st.just("evict"), st.sampled_from(PATHS), st.booleans()),
        st.tuples(st.just("clear"), st.none(), st.booleans()),
        st.tuples(st.just("answer"), st.none(), st.booleans()),
        st.tuples(st.just("restart engine"), st.none(), st.none()),
        st.tuples(st.just("restart writer"), st.none(), st.booleans()),
        st.tuples(st.just("wait"), st.none(), st.none()),
    ),
    max_size=40,
)


def run(world: World, told: list[tuple[str, Path | None, bool | None]]) -> None:
    for what, path, flag in told:
        match what:
            case "store" if path:
                world.hear(world.engine.store(path), lost=bool(flag))
            case "evict" if path:
                world.hear(world.engine.evict(path), lost=bool(flag))
            case "clear":
                world.hear(world.engine.clear(), lost=bool(flag))
            case "answer":
                world.answer(breaks_off=bool(flag))
            case "restart engine":
                world.engine.restart()
                world.mirror.new_life()  # the watch sees another start of the process
            case "restart writer":
                world.restart_writer(with_memory=bool(flag))
            case "wait":
                world.now += 20.0
        assert world.known == set(world.mirror.present())


@settings(max_examples=200)
@example(
    # A memory that isn't whole: who goes on from it has to ask for the rest.
    [
        ("answer", None, True),
        ("store", (0,), True),
        ("store", (0, 0), False),
        ("restart writer", None, True),
    ]
)
@given(steps)
def test_with_a_buffer_that_reaches_far_the_mirror_ends_with_the_engines_own_truth(
    told: list[tuple[str, Path | None, bool | None]],
) -> None:
    world = World(1000, replays=True)
    run(world, told)
    world.settle()
    assert world.known == world.engine.keys()


@settings(max_examples=200)
@given(steps, st.integers(0, 5), st.booleans())
def test_with_a_short_buffer_or_none_nothing_is_credited_that_the_engine_does_not_hold(
    told: list[tuple[str, Path | None, bool | None]], keeps: int, replays: bool
) -> None:
    world = World(keeps + 1, replays=replays)
    run(world, told)
    world.settle()
    assert world.known <= world.engine.keys()
    assert set(token_keys(tokens((1, 0)), seed_of("m"))) <= world.engine.keys()
