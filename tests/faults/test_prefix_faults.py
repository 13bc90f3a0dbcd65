"""Field faults of the prefix index and of KV events, by their number.

Each docstring names what protects; every one of these was seen red with that disabled.
"""

from typing import Any

import msgspec
import pytest

from epp.framework import EndpointId, Incarnation, PoolId
from epp.state.blocks import seed_of, token_keys
from epp.state.engine_blocks import EngineBlocks
from epp.state.events import (
    BlockStored,
    DecodeError,
    Event,
    Frame,
    decode,
    split_frames,
)
from epp.state.prefix import PredictedIndex, PrefixIndex
from epp.state.sequence import Forget
from epp.state.sequencer import Sequencer
from tests.fakes.kv_publisher import (
    CLEARED,
    CLEARED_MAP,
    as_array,
    payload,
    removed,
    removed_map,
    stored,
    stored_map,
)

PROMPT = list(range(5000, 5256))


def life(name: str, start_ms: int = 1, port: int = 8000) -> Incarnation:
    return Incarnation(EndpointId(PoolId("p"), name, port), start_ms)


def keys(tokens: list[int], model: str = "m", salt: str = "") -> tuple[int, ...]:
    return token_keys(tokens, seed_of(model, salt=salt))


class Pod:
    """The whole path of one engine's events: bytes, own keys, index."""

    def __init__(self, index: PrefixIndex, inc: Incarnation, model: str = "m") -> None:
        self.index, self.inc = index, inc
        self.engine = EngineBlocks(model)
        self.sequencer = Sequencer()

    def tell(self, *events: Event) -> None:
        delta = self.engine.apply(events)
        if delta.reset:
            self.index.clear(self.inc)
        self.index.store(self.inc, delta.stored)
        self.index.remove(self.inc, delta.removed)

    def receive(self, seq: int, events: list[Any]) -> list[Forget]:
        """What an owner does with a message. Says why things were forgotten."""
        steps = self.sequencer.live(Frame(b"kv", seq, payload(events)))
        for step in steps:
            if isinstance(step, Forget):
                self.engine.clear()
                self.index.clear(self.inc)
            elif isinstance(step, Frame):
                self.tell(*decode(step.payload).events)
        return [step for step in steps if isinstance(step, Forget)]

    def credit(self, wanted: tuple[int, ...]) -> int:
        return self.index.lookup(wanted, [self.inc]).get(self.inc, 0)


@pytest.fixture
def index() -> PrefixIndex:
    return PrefixIndex(1000)


@pytest.fixture
def pod(index: PrefixIndex) -> Pod:
    return Pod(index, life("a"))


def test_C01_a_cleared_cache_earns_no_credit(pod: Pod) -> None:
    """`EngineBlocks.apply` on AllBlocksCleared; where it never comes, `continuity`."""
    prompts = [[at * 1000 + token for token in range(128)] for at in range(10)]
    for at, prompt in enumerate(prompts):
        pod.tell(stored([f"{at}a".encode(), f"{at}b".encode()], prompt, 64))
    assert [pod.credit(keys(prompt)) for prompt in prompts] == [2] * 10
    pod.tell(CLEARED)
    assert [pod.credit(keys(prompt)) for prompt in prompts] == [0] * 10
    assert pod.engine.present() == []


def test_C01_a_restart_without_any_word_of_it_earns_no_credit(pod: Pod) -> None:
    """`continuity`: a sequence that falls is a restart."""
    for seq in range(3):
        pod.receive(seq, [stored_map([seq], [seq] * 64, 64)])
    assert pod.receive(0, []) == [Forget.RESTART]
    assert pod.credit(keys([1] * 64)) == 0


def test_C02_clearing_a_million_blocks_is_one_step_and_lookups_go_on() -> None:
    """`Holders.clear` retires the slot and `sweep` keeps to its budget."""
    index, million = PrefixIndex(1_000_000), 1_000_000
    big, small = life("big"), life("small")
    index.store(big, range(million))
    index.store(small, range(100))
    index.clear(big)
    assert index.retired_blocks == million  # nothing was visited
    assert index.lookup(range(100), (big, small)) == {small: 100}
    swept = 0
    while index.retired_blocks:
        budgeted = index.sweep(10_000)
        assert budgeted <= 10_000
        swept += budgeted
        assert index.lookup(range(100), (big, small)) == {small: 100}
    index.sweep(10_000_000)
    assert swept == million
    assert (len(index), index.slots) == (100, 1)


def test_C03_late_events_of_a_removed_pod_are_dropped_and_counted(index: PrefixIndex) -> None:
    """`PrefixIndex.store` refuses what `forget` (or `retain`) has named."""
    pod = Pod(index, life("gone"))
    pod.tell(stored([1], PROMPT[:64], 64))
    index.retain([life("other")])
    for at in range(100):
        pod.tell(stored([100 + at], [at] * 64, 64))
    assert index.late == 100
    assert index.blocks(pod.inc) == 0
    index.sweep(1000)
    assert (len(index), index.slots) == (0, 0)


def test_C04_another_pod_at_the_same_place_inherits_nothing(index: PrefixIndex) -> None:
    """`Holders._end_sweep` frees a slot only when all lanes were seen."""
    old = Pod(index, life("uid1"))
    old.tell(stored([1, 2, 3, 4], PROMPT, 64))
    index.clear(old.inc)
    new = Pod(index, life("uid2"))
    new.tell(stored([9], [7] * 64, 64))
    restarted = Pod(index, life("uid1", start_ms=2))
    restarted.tell(stored([9], [7] * 64, 64))
    for key in keys(PROMPT):
        assert [pod.credit((key,)) for pod in (old, new, restarted)] == [0, 0, 0]


def test_C05_a_gap_resets_the_pod_so_that_no_missed_removal_leaves_credit(pod: Pod) -> None:
    """`Sequencer._follow`: a gap that can't be mended forgets."""
    pod.receive(49, [stored_map([1, 2], PROMPT[:128], 64)])
    # 50 to 60 are lost, and with them the removal of both blocks.
    assert pod.receive(61, [stored_map([5], [5] * 64, 64)]) == [Forget.GAP]
    assert pod.credit(keys(PROMPT[:128])) == 0
    assert pod.credit(keys([5] * 64)) == 1


LAYOUTS = {
    "maps": lambda events: [2.5, events, 0],
    "maps in a map": lambda events: {"ts": 2.5, "events": events},
    "arrays": lambda events: [2.5, [as_array(event) for event in events], None],
    "short batch": lambda events: [2.5, [as_array(event) for event in events]],
    "arrays with later fields": lambda events: [
        2.5,
        [as_array(event, extra=[1, {"b": 2}]) for event in events],
        0,
        "later",
    ],
    "maps with later fields": lambda events: [2.5, [{**e, "later": 1} for e in events], 0],
    "unknown events between": lambda events: [
        2.5,
        [["Novel", 1], events[0], {"type": "Other"}, *events[1:]],
        0,
    ],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_C08_every_layout_gives_the_same_index(pod: Pod, layout: str) -> None:
    """`events._event` and `events._shaped` take maps and arrays, short and long."""
    events = [
        CLEARED_MAP,
        stored_map([1, 2, 3, 4], PROMPT, 64),
        removed_map([4], medium="GPU"),
    ]
    batch = decode(msgspec.msgpack.encode(LAYOUTS[layout](events)))
    pod.tell(*batch.events)
    assert pod.credit(keys(PROMPT)) == 3
    assert batch.skipped == (2 if layout == "unknown events between" else 0)


@pytest.mark.parametrize(
    "pair",
    [(-(2**63), 2**63), (-1, 2**64 - 1), (b"\x01" * 32, b"\x02" * 32), (b"\x01", 1), (b"", 0)],
    ids=["signed", "minus one", "bytes", "bytes like a number", "zero"],
)
@pytest.mark.parametrize("as_arrays", [False, True])
def test_C09_hashes_are_opaque_and_never_confused(
    pod: Pod, pair: tuple[Any, Any], as_arrays: bool
) -> None:
    """`events.Hash`: integers of either sign and bytes stay what they are."""
    one, other = pair

    def send(*events: dict[str, Any]) -> None:
        shaped = [as_array(event) if as_arrays else event for event in events]
        pod.tell(*decode(payload(shaped)).events)

    send(stored_map([one], PROMPT[:64], 64), stored_map([other], PROMPT[64:128], 64))
    if one:
        send(stored_map([b"child"], PROMPT[64:128], 64, parent=one))
        assert pod.credit(keys(PROMPT[:128])) == 2
        send(removed_map([b"child"]))
    send(removed_map([other]))
    assert pod.credit(keys(PROMPT[:64])) == 1
    send(removed_map([one]))
    assert (pod.engine.present(), len(pod.engine)) == ([], 0)


def test_C10_engines_with_other_hash_seeds_share_keys(index: PrefixIndex) -> None:
    """`Tree._extend` makes keys of token ids; the engine's hashes only find blocks again."""
    one, two = Pod(index, life("a")), Pod(index, life("b"))
    one.tell(stored([11, 12, 13, 14], PROMPT, 64))
    two.tell(stored([b"w", b"x", b"y", b"z"], PROMPT, 64))
    assert index.lookup(keys(PROMPT), [one.inc, two.inc]) == {one.inc: 4, two.inc: 4}


@pytest.mark.parametrize("size", [1, 8, 16, 32, 48, 64, 100, 128, 256, 4096])
def test_C11_any_engine_block_size_gives_the_same_keys(pod: Pod, size: int) -> None:
    """`Tree._extend` carries the tail of a partial own block to the next engine block."""
    prompt = list(range(8192))
    count = len(prompt) // size
    for at in range(count):
        tokens = prompt[at * size : (at + 1) * size]
        pod.tell(stored([at + 1], tokens, size, parent=at or None))
    assert pod.credit(keys(prompt)) == count * size // 64


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 0), (15, 0), (16, 1), (17, 1), (32, 2)])
def test_C12_only_full_blocks_count_and_none_at_all_is_legal(tokens: int, blocks: int) -> None:
    """`blocks._chain` stops before a partial block."""
    index, inc = PrefixIndex(10), life("a")
    prompt = list(range(tokens))
    engine = EngineBlocks("m", own_block_tokens=16)
    index.store(inc, engine.apply([stored(range(tokens // 16), prompt[: blocks * 16], 16)]).stored)
    wanted = token_keys(prompt, seed_of("m"), 16)
    assert len(wanted) == blocks
    assert index.lookup(wanted, [inc]) == ({inc: blocks} if blocks else {})


def test_C13_a_salted_prompt_is_cold_for_everybody_else(pod: Pod) -> None:
    """`engine_blocks._extras` finds the salt, `EngineBlocks._root_of` puts it into the seed."""
    event = stored_map([1, 2], PROMPT[:128], 64, extra_keys=[["s1"], None])
    pod.tell(*decode(payload([event])).events)
    assert pod.credit(keys(PROMPT[:128], salt="s1")) == 2
    assert pod.credit(keys(PROMPT[:128], salt="s2")) == 0
    assert pod.credit(keys(PROMPT[:128])) == 0


def test_C13_no_salt_is_shown_where_events_are_printed() -> None:
    """`BlockStored.extra_keys` is kept out of the text of an event."""
    event = stored_map([1], PROMPT[:64], 64, extra_keys=[["s3cret"]])
    assert "s3cret" not in repr(decode(payload([event])))


def test_C14_adapters_and_the_base_model_share_nothing(index: PrefixIndex) -> None:
    """`EngineBlocks._root_of`: the adapter's name is the model, a bare number matches nobody."""
    a, b, numbered, base = (Pod(index, life(name), "base") for name in ("a", "b", "n", "base"))
    a.tell(stored([1], PROMPT[:64], 64, lora_name="poet", lora_id=1))
    b.tell(stored([1], PROMPT[:64], 64, lora_name="coder"))
    numbered.tell(stored([1], PROMPT[:64], 64, lora_id=1))
    base.tell(stored([1], PROMPT[:64], 64))
    everybody = [one.inc for one in (a, b, numbered, base)]
    assert index.lookup(keys(PROMPT[:64], "poet"), everybody) == {a.inc: 1}
    assert index.lookup(keys(PROMPT[:64], "coder"), everybody) == {b.inc: 1}
    assert index.lookup(keys(PROMPT[:64], "base"), everybody) == {base.inc: 1}


def test_C15_another_image_is_cold_from_its_place_on(index: PrefixIndex) -> None:
    """`engine_blocks._mixed_in` puts what isn't text into the key."""
    with_a, same, with_b, plain = (Pod(index, life(name)) for name in ("a", "same", "b", "plain"))
    for pod, image in ((with_a, "img-a"), (same, "img-a"), (with_b, "img-b"), (plain, None)):
        extra: list[Any] = [None, [[image, 7]] if image else None, None, None]
        event = stored_map([1, 2, 3, 4], PROMPT, 64, extra_keys=extra)
        pod.tell(*decode(payload([event])).events)
    wanted = tuple(with_a.engine.present())
    found = index.lookup(wanted, [one.inc for one in (with_a, same, with_b, plain)])
    assert found == {with_a.inc: 4, same.inc: 4, with_b.inc: 1, plain.inc: 1}
    assert index.lookup(keys(PROMPT), [with_a.inc, plain.inc]) == {with_a.inc: 1, plain.inc: 4}


def test_C16_prompts_share_exactly_their_common_start() -> None:
    """`blocks._chain`: each key has the one before it as seed."""
    common, tail = PROMPT[:128], PROMPT[128:]
    variants = [keys([*common, tools, *tail]) for tools in (1, 2, 3)]
    for one in variants:
        for other in variants:
            same = sum(a == b for a, b in zip(one, other, strict=True))
            assert same == (4 if one is other else 2)


@pytest.mark.parametrize("kinds", [("full_attention", "sliding_window"), (None, None)])
def test_C17_a_sliding_window_group_neither_gives_nor_takes_credit(
    pod: Pod, kinds: tuple[str | None, str | None]
) -> None:
    """`EngineBlocks._tree_of`: a tree per group, none for other kinds of attention."""
    full, window = (
        {"group_idx": group, "kv_cache_spec_kind": kind} for group, kind in enumerate(kinds)
    )
    pod.tell(stored([1], PROMPT[:64], 64, **full), stored([1], PROMPT[:64], 64, **window))
    pod.tell(stored([2], PROMPT[64:128], 64, parent=1, **window))
    assert pod.credit(keys(PROMPT[:128])) == 1
    pod.tell(removed(1, group_idx=1))
    assert pod.credit(keys(PROMPT[:64])) == 1
    pod.tell(removed(1, group_idx=0))
    assert pod.credit(keys(PROMPT[:64])) == 0
    assert pod.engine.ignored == 3


def test_C17_a_block_stored_twice_survives_its_first_removal(pod: Pod) -> None:
    """`Tree.remove` counts references."""
    pod.tell(stored([1], PROMPT[:64], 64), stored([1], PROMPT[:64], 64))
    assert pod.engine.duplicates == 1
    pod.tell(removed(1))
    assert pod.credit(keys(PROMPT[:64])) == 1
    pod.tell(removed(1))
    assert pod.credit(keys(PROMPT[:64])) == 0


def test_C18_other_tiers_neither_give_nor_take_credit_of_the_gpu(pod: Pod) -> None:
    """`engine_blocks._tier_name`, asked for stores and for removals."""
    block = keys(PROMPT[:64])
    pod.tell(stored([1], PROMPT[:64], 64, medium="CPU"), stored([1], [], 0, medium="DISK"))
    assert pod.credit(block) == 0
    assert pod.engine.tiers_present() == {"CPU": block, "DISK": block}
    pod.tell(stored([1], PROMPT[:64], 64))
    pod.tell(removed(1, medium="CPU"))
    assert pod.credit(block) == 1
    pod.tell(removed(1, medium="GPU"))
    assert pod.credit(block) == 0


@pytest.mark.parametrize(
    ("tokens", "size"), [([], 0), ([], 64), (PROMPT[:63], 64), (PROMPT[:64], 0)]
)
def test_C18_placeholder_tokens_are_counted_and_harm_nothing(
    pod: Pod, tokens: list[int], size: int
) -> None:
    """`EngineBlocks._store` compares tokens with blocks times size."""
    pod.tell(stored([1], PROMPT[:64], 64), stored([2], tokens, size, parent=1), removed(2))
    assert pod.credit(keys(PROMPT[:128])) == 1
    assert (pod.engine.unusable, pod.engine.unknown_removals) == (1, 1)


def test_C19_an_orphan_gives_no_credit_and_spares_the_rest_of_its_batch(pod: Pod) -> None:
    """`EngineBlocks._store` passes over blocks whose parent isn't held."""
    pod.tell(
        stored([1], PROMPT[:64], 64),
        stored([50, 51], PROMPT[128:256], 64, parent=49),
        stored([2], PROMPT[64:128], 64, parent=1),
    )
    assert pod.engine.orphans == 2
    assert pod.credit(keys(PROMPT)) == 2
    assert pod.credit(keys(PROMPT[128:256])) == 0
    # Once the parent comes, children that come after it count.
    pod.tell(stored([49], PROMPT[64:128], 64, parent=1))
    pod.tell(stored([50, 51], PROMPT[128:256], 64, parent=49))
    assert pod.credit(keys(PROMPT)) == 4


def test_C22_only_the_candidates_asked_for_are_found(index: PrefixIndex) -> None:
    """`Holders.depths` answers for the slots of the incarnations given."""
    prefill, decoder = Pod(index, life("p1")), Pod(index, life("d1"))
    prefill.tell(stored([1, 2, 3, 4], PROMPT, 64))
    assert index.lookup(keys(PROMPT), [decoder.inc, life("d2")]) == {}
    assert index.lookup(keys(PROMPT), [prefill.inc, life("p2")]) == {prefill.inc: 4}


def test_C23_endless_blocks_reach_a_plateau_everywhere() -> None:
    """Limits in `Holders.tell`, `PredictedIndex._make_room`, `EngineBlocks._store`."""
    index, inc = PrefixIndex(500), life("a")
    predicted = PredictedIndex(500, ttl_s=1e9)
    engine = EngineBlocks("m", max_blocks=500)
    for at in range(2000):
        some = range(at * 10, at * 10 + 10)
        index.store(inc, some)
        predicted.insert(inc, some, str(at), now=0.0)
        engine.apply([stored([at], [at] * 64, 64)])
    assert len(index) == index.blocks(inc) == 500
    assert index.refused == 19_500
    assert len(predicted) == 500
    assert predicted.open_requests <= 2000
    assert len(engine) <= 500


def test_C23_churning_pods_leave_nothing_behind() -> None:
    """`Holders.tell` sweeps as it goes; `PredictedIndex._clean` does too."""
    index, predicted = PrefixIndex(1000), PredictedIndex(10_000, ttl_s=1e9)
    for at in range(50):
        inc = life("pod", start_ms=at)
        index.store(inc, range(at * 1000, at * 1000 + 1000))
        predicted.insert(inc, range(at * 1000, at * 1000 + 1000), str(at), now=0.0)
        index.clear(inc)
        predicted.forget(inc)
    assert len(index) <= 1000
    assert index.slots <= 2
    assert len(predicted) <= 1000
    assert len(predicted._held._holders) == 0
    assert len(predicted._gone) <= 1


SEQ = bytes(8)


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [b"t"],
        [b"t", SEQ],
        [b"t", SEQ, b"", b""],
        [b"t", b"", b""],
        [b"t", b"123", b""],
        [b"t", b"123456789", b""],
    ],
)
def test_C24_damaged_frames_are_one_kind_of_error(parts: list[bytes]) -> None:
    """`split_frames` checks their number and the sequence's length."""
    with pytest.raises(DecodeError):
        split_frames(parts)


@pytest.mark.parametrize("data", [b"", b"\xc1random", b"\xdd\xff\xff\xff\xff", b"\x91" * 9999])
def test_C24_damaged_payloads_are_the_same_kind_of_error(pod: Pod, data: bytes) -> None:
    """`decode` turns all that msgpack can raise, deep nesting too, into DecodeError."""
    with pytest.raises(DecodeError):
        decode(data)
    pod.receive(0, [stored_map([1], PROMPT[:64], 64)])
    assert pod.credit(keys(PROMPT[:64])) == 1


def test_C24_fifty_megabytes_are_refused_unread() -> None:
    """`decode` looks at the length first."""
    with pytest.raises(DecodeError, match="over the limit"):
        decode(bytes(50_000_000))


def test_C25_a_failed_request_leaves_no_prediction() -> None:
    """`PredictedIndex.drop` takes away what only that request predicted."""
    index, inc = PredictedIndex(1000, ttl_s=100), life("a")
    index.insert(inc, keys(PROMPT[:128]), "other", now=0.0)
    index.insert(inc, keys(PROMPT), "failed", now=0.0)
    assert index.lookup(keys(PROMPT), [inc], now=1.0) == {inc: 4}
    index.drop("failed")
    assert index.lookup(keys(PROMPT), [inc], now=1.0) == {inc: 2}
    index.drop("other")
    assert index.lookup(keys(PROMPT), [inc], now=1.0) == {}


def test_C26_replicas_that_apply_the_same_stream_agree_with_the_engine() -> None:
    """`Holders.tell` passes over what is so already."""
    engine = EngineBlocks("m")
    inc, replicas = life("a"), (PrefixIndex(1000), PrefixIndex(1000))
    held: set[int] = set()
    for at in range(2_000):
        name = at * 7919 % 50
        event: Event = removed(name) if name in held else stored([name], [name] * 64, 64)
        held ^= {name}
        assert isinstance(event, BlockStored) == (name in held)
        delta = engine.apply([event])
        for turn, replica in enumerate(replicas):
            for _ in range(1 + (at + at // 50 + turn) % 2):  # each sees every other change twice
                replica.store(inc, delta.stored)
                replica.remove(inc, delta.removed)
    expected = {key for name in held for key in keys([name] * 64)}
    assert set(engine.present()) == expected
    for replica in replicas:
        assert replica.blocks(inc) == len(expected)
        assert all(replica.lookup([key], [inc]) == {inc: 1} for key in expected)
        assert len(replica) == len(expected)


def test_B23_whoever_was_chosen_by_whatever_rule_gets_the_prediction() -> None:
    """`PredictedIndex.insert` asks for no earlier match."""
    index, inc = PredictedIndex(1000, ttl_s=100), life("a")
    index.insert(inc, keys(PROMPT), "first", now=0.0)
    assert index.lookup(keys(PROMPT), [inc, life("b")], now=0.1) == {inc: 4}
