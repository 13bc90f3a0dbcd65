"""Field faults of the order of KV events: gaps, replays, late joiners, ranks. By their number."""

from typing import Any

import msgspec
import pytest

from epp.state.blocks import Media, Naming, media_identity, seed_of, token_keys
from epp.state.engine_blocks import EngineBlocks
from epp.state.entries import Entries
from epp.state.events import Frame, decode
from epp.state.sequencer import COOLDOWN_S
from epp.state.subscriber import of_rank
from epp.state.writing.cache import CacheMirror
from sidecar.settings import SidecarSettings
from sidecar.state.wiring import following_of, mirror_of
from tests.fakes.kv_publisher import payload, removed_map, stored_map

SIZE = 64
PROMPT = list(range(7000, 7256))


def tokens(number: int) -> list[int]:
    return list(range(number * 1000, number * 1000 + SIZE))


def key(number: int) -> int:
    return token_keys(tokens(number), seed_of("m"))[0]


def block(number: int, parent: int | None = None) -> dict[str, Any]:
    return stored_map([number], tokens(number), SIZE, parent)


class Engine:
    """What an engine has published, with a buffer of all of it, and the mirror that listens."""

    def __init__(self, **more: Any) -> None:
        self.mirror = CacheMirror(lambda _: None, replays=True, **more)
        self.mirror.serve("m")
        self.said: list[Frame] = []

    def say(self, *events: dict[str, Any], heard: bool = True, rank: int | None = 0) -> None:
        frame = Frame(b"kv", len(self.said), payload(events, dp_rank=rank))
        self.said.append(frame)
        if heard:
            self.mirror.on(frame)

    def replay(self) -> None:
        """Answer what is wanted just now."""
        assert self.mirror.wanted is not None
        for frame in self.said[self.mirror.wanted.start :]:
            self.mirror.replayed(frame)
        self.mirror.replay_ended(complete=True)

    def knows(self) -> set[int]:
        return set(self.mirror.present())


def test_C05_what_a_gap_hid_is_asked_for_and_the_end_is_the_engines_truth() -> None:
    """`Sequencer._follow` asks for a replay where a sequence jumps."""
    engine = Engine()
    engine.replay()
    engine.say(block(1), block(2))
    engine.say(block(3), heard=False)
    engine.say(removed_map([1]), heard=False)
    engine.say(block(4))
    engine.replay()
    assert engine.knows() == {key(2), key(3), key(4)}
    assert engine.mirror.sequence.gaps == 1


def test_C05_a_replay_that_broke_off_leaves_no_stale_credit() -> None:
    """`Sequencer._drain` forgets what it can't mend."""
    engine = Engine()
    engine.replay()
    engine.say(block(1), block(2))
    engine.say(removed_map([1]), heard=False)
    engine.say(block(4))
    engine.mirror.replay_ended(complete=False)
    assert engine.knows() == {key(4)}


def test_C06_an_old_event_never_undoes_a_newer_one() -> None:
    """`Sequencer.live` holds messages back while a replay of older ones is wanted."""
    engine = Engine()
    engine.replay()
    engine.say(block(9))
    engine.say(block(1), heard=False)
    engine.say(block(5))
    assert engine.mirror.wanted is not None
    before = engine.said[engine.mirror.wanted.start :]
    engine.say(removed_map([1]))  # live, while the replay has not yet told of 1
    assert engine.knows() == {key(9)}
    for frame in before:
        engine.mirror.replayed(frame)
    engine.mirror.replay_ended(complete=True)
    assert engine.knows() == {key(9), key(5)}


def test_C06_a_live_message_that_the_replay_said_already_counts_once() -> None:
    """`Sequencer._drain` passes over what the replay reached."""
    engine = Engine()
    engine.replay()
    engine.say(block(9))
    engine.say(block(1), heard=False)
    engine.say(block(1))
    engine.replay()
    engine.say(removed_map([1]), removed_map([1]))
    assert engine.knows() == {key(9)}


def test_C07_who_joins_late_asks_for_all_that_was_said() -> None:
    """`Sequencer.__init__` wants everything from the first message on."""
    engine = Engine()
    for number in range(1, 1001):
        engine.say(block(number), heard=False)
    engine.replay()
    assert engine.knows() == {key(number) for number in range(1, 1001)}


def test_C07_a_writer_that_restarts_goes_on_where_the_one_before_was() -> None:
    """`CacheMirror._believe_memory` restores, once the engine shows that nothing was missed."""
    engine = Engine()
    engine.replay()
    engine.say(block(1), block(2))
    memory = Entries.unpack(engine.mirror.entries().pack())
    engine.say(removed_map([1]), heard=False)
    engine.say(block(3), heard=False)
    engine.mirror = CacheMirror(lambda _: None, replays=True)
    engine.mirror.serve("m")
    assert memory.engine_seq is not None
    assert engine.mirror.resume(memory, memory.engine_seq)
    engine.replay()
    assert engine.knows() == {key(2), key(3)}


def test_C08_a_batch_of_any_producer_gives_the_same_index() -> None:
    """`events._Batch` and `events._tokens` read what SGLang calls by other names."""
    event = ["BlockStored", [1], None, tokens(1), SIZE, None, "GPU"]
    pairs = ["BlockStored", [1], None, [[t, t + 1] for t in tokens(1)], SIZE, None, "GPU"]
    shapes: list[Any] = [
        [1.0, [event], 0],
        {"ts": 1.0, "events": [pairs], "attn_dp_rank": 0},
        [1.0, [block(1)], 0],
    ]
    for shape in shapes:
        engine = EngineBlocks("m")
        engine.apply(decode(msgspec.msgpack.encode(shape)).events)
        assert engine.present() == [key(1)]


def test_C13_salted_keys_need_the_pools_own_secret() -> None:
    """`blocks.seed_of` hashes a salt under the naming's key."""
    naming = Naming.of_pool("p", salt_key=b"k" * 32)
    event = stored_map([1], PROMPT[:64], 64, extra_keys=[["tenant"]])
    engine = EngineBlocks("m", naming=naming)
    engine.apply(decode(payload([event])).events)
    ours = token_keys(PROMPT[:64], seed_of("m", salt="tenant", naming=naming))
    guessed = token_keys(PROMPT[:64], seed_of("m", salt="tenant", naming=Naming.of_pool("p")))
    assert engine.present() == list(ours)
    assert not set(ours) & set(guessed)


@pytest.mark.parametrize("size", [16, 32, 48, 64, 96, 128, 256])
def test_C15_an_image_has_the_place_that_a_request_gives_it(size: int) -> None:
    """`Extras.within` counts a medium where it begins, whatever the engine's block size."""
    begins, ends = 71, 140
    count = len(PROMPT) // size
    extra = [
        [["img-a", begins - at * size]] if at * size < ends and begins < (at + 1) * size else None
        for at in range(count)
    ]
    event = stored_map(range(1, count + 1), PROMPT[: count * size], size, extra_keys=extra)
    engine = EngineBlocks("m")
    engine.apply(decode(payload([event])).events)
    asked = token_keys(
        PROMPT[: count * size], seed_of("m"), media=[Media(media_identity("img-a"), begins)]
    )
    assert engine.present() == list(asked)


def test_C15_a_medium_without_a_place_matches_nobody() -> None:
    """`engine_extras.extras_of` mixes in what can't be placed, in a form that no request makes."""
    event = stored_map([1, 2], PROMPT[:128], 64, extra_keys=[None, ["img-a"]])
    engine = EngineBlocks("m")
    engine.apply(decode(payload([event])).events)
    for place in (None, *range(64, 128)):
        media = [] if place is None else [Media(media_identity("img-a"), place)]
        asked = token_keys(PROMPT[:128], seed_of("m"), media=media)
        assert set(engine.present()) & set(asked) == {asked[0]}


def test_C18_a_block_lives_on_where_a_tier_keeps_it() -> None:
    """`EngineBlocks._store_by_name` knows a block without tokens by the tier that has them."""
    (one,) = token_keys(PROMPT[:64], seed_of("m"))
    engine = EngineBlocks("m")

    def told(*events: dict[str, Any]) -> tuple[list[int], dict[str, tuple[int, ...]]]:
        engine.apply(decode(payload(events)).events)
        return engine.present(), {
            tier: keys for tier, keys in engine.tiers_present().items() if keys
        }

    assert told(stored_map([1], PROMPT[:64], 64)) == ([one], {})
    assert told(stored_map([1], [], 0, medium="CPU")) == ([one], {"CPU": (one,)})
    assert told(removed_map([1], medium="GPU")) == ([], {"CPU": (one,)})
    assert told(stored_map([1], [], 0, medium="DISK")) == ([], {"CPU": (one,), "DISK": (one,)})
    assert told(removed_map([1], medium="CPU")) == ([], {"DISK": (one,)})
    assert told(stored_map([1], PROMPT[:64], 64)) == ([one], {"DISK": (one,)})
    assert told(removed_map([1], medium="DISK"), removed_map([1])) == ([], {})


def test_C19_an_orphan_finds_its_place_when_its_parent_comes() -> None:
    """`EngineBlocks._place` takes in the orphans that waited for a block."""
    engine = EngineBlocks("m")
    whole = token_keys(PROMPT, seed_of("m"))
    child = stored_map([3, 4], PROMPT[128:], 64, parent=2)
    engine.apply(decode(payload([child, stored_map([9], PROMPT[:64], 64)])).events)
    assert engine.present() == [whole[0]]
    assert engine.waiting == 2
    engine.apply(decode(payload([stored_map([2], PROMPT[64:128], 64, parent=9)])).events)
    assert engine.present() == list(whole)
    assert engine.waiting == 0


def test_C19_an_orphan_that_the_engine_removed_never_counts() -> None:
    """`EngineBlocks._remove` looks among the orphans too."""
    engine = EngineBlocks("m")
    child = stored_map([3, 4], PROMPT[128:], 64, parent=2)
    engine.apply(decode(payload([child, removed_map([4])])).events)
    whole = stored_map([1, 2], PROMPT[:128], 64)
    engine.apply(decode(payload([whole])).events)
    assert engine.present() == list(token_keys(PROMPT[:192], seed_of("m")))


def test_C19_orphans_make_the_writer_ask_for_everything_again() -> None:
    """`CacheMirror._apply` asks afresh while orphans wait."""
    clock = [0.0]
    engine = Engine(clock=lambda: clock[0])
    engine.say(block(1), heard=False)
    engine.mirror.replay_ended(complete=False)  # nobody answered when we began
    engine.say(block(2, parent=1))
    assert engine.knows() == set()
    clock[0] = COOLDOWN_S
    engine.say(block(5))
    engine.replay()
    both = token_keys([*tokens(1), *tokens(2)], seed_of("m"))
    assert engine.knows() == {*both, key(5)}


def test_C20_each_rank_is_followed_at_its_own_port_and_alone() -> None:
    """`wiring.following_of` counts the ports up; `CacheMirror._apply` leaves other ranks out."""
    settings = SidecarSettings(
        pool="p", name="n", kv_events="tcp://10.0.0.1:5557", kv_replay="tcp://[::1]:6000", dp_rank=2
    )
    mirror = mirror_of(settings, lambda: 0.0)(lambda _: None)
    mirror.serve("m")
    mirror.replay_ended(complete=True)
    for seq, rank in enumerate((2, 0, 2, 1, None)):
        mirror.on(Frame(b"kv", seq, payload([block(seq + 1)], dp_rank=rank)))
    assert set(mirror.present()) == {key(1), key(3), key(5)}
    assert mirror.counts.other_ranks == 2
    assert of_rank("tcp://10.0.0.1:5557", 2) == "tcp://10.0.0.1:5559"
    assert following_of(settings, _Nobody()).endpoint == "tcp://10.0.0.1:5559"


def test_C20_ranks_that_share_a_port_are_never_merged() -> None:
    """`CacheMirror._apply` keeps to the rank that spoke first."""
    engine = Engine()
    engine.replay()
    engine.say(block(1), rank=1)
    engine.say(block(2), rank=0)
    engine.say(removed_map([1]), rank=0)
    assert engine.knows() == {key(1)}


class _Nobody:
    """A taker that is never told anything."""

    wanted = None

    def look(self) -> None:
        raise AssertionError

    def frame(self, frame: Frame) -> None:
        raise AssertionError(frame)

    replayed = frame

    def replay_ended(self, *, complete: bool) -> None:
        raise AssertionError(complete)
