"""A writer's memory: what goes into the blob, what is refused, what a restarted mirror believes."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from epp.state import entries as memory
from epp.state.blocks import Naming, seed_of, token_keys
from epp.state.engine_blocks import Delta, EngineBlocks
from epp.state.entries import Entries, EntriesError, Run, Tail
from epp.state.events import Frame
from epp.state.writing.cache import CacheMirror
from epp.state.writing.chronicle import READ_AT_ONCE, Chronicle
from epp.state.writing.life import Life
from tests.fakes.kv_publisher import payload, removed, removed_map, stored, stored_map

PROMPT = list(range(1000, 1512))
KEYS = token_keys(PROMPT, seed_of("m"))


def held(*hashes: Any) -> EngineBlocks:
    engine = EngineBlocks("m")
    engine.apply([stored(hashes or range(32), PROMPT, 512 // len(hashes or range(32)))])
    return engine


def frame(seq: int, *events: dict[str, Any]) -> Frame:
    return Frame(b"kv", seq, payload(events))


def whole(at: int) -> dict[str, Any]:
    """One own block in four engine blocks, the first of them named `at`."""
    return stored_map([at, at + 1, at + 2, at + 3], PROMPT[:64], 16)


@pytest.mark.parametrize(
    "hashes",
    [(1, 2**64 - 1), (-1, -(2**63)), (b"x" * 32, b"y"), (1, b"\x01" * 8)],
    ids=["unsigned", "negative", "bytes", "mixed"],
)
def test_hashes_of_any_kind_come_back_as_they_were(hashes: tuple[Any, ...]) -> None:
    entries = held(*hashes).freeze(3).entries()
    again = Entries.unpack(entries.pack())
    assert again == entries
    assert again.hashes == hashes
    assert [type(one) for one in again.hashes] == [type(one) for one in hashes]


def test_a_block_takes_about_eight_bytes_and_its_key_eight_more() -> None:
    engine = EngineBlocks("m")
    for at in range(0, 2000, 32):
        engine.apply([stored([2**63 + at + n for n in range(32)], [at + 7] * 512, 16)])
    entries = engine.freeze(1).entries()
    assert len(entries) == 2016
    assert len(entries.pack()) < 2016 * (8 + 8 / 4 + 2)


def test_tiers_groups_salts_and_references_come_back() -> None:
    engine = EngineBlocks("m")
    full = {"kv_cache_spec_kind": "full_attention"}
    engine.apply(
        [
            stored(range(8), PROMPT, 64, group_idx=0, **full),
            stored(range(8), PROMPT, 64, group_idx=1, **full),
            stored(range(8), [], 0, medium="CPU"),
            stored([50], PROMPT[:64], 64, extra_keys=(["salt"],)),
            stored([0], PROMPT[:64], 64),
        ]
    )
    engine.apply([removed(7, group_idx=1), removed(6, medium="CPU")])
    again = EngineBlocks("m")
    delta = again.restore(Entries.unpack(engine.freeze(1).entries().pack()))
    assert delta.reset
    assert set(delta.stored) == set(engine.present())
    assert again.tiers_present() == engine.tiers_present()
    again.apply([removed(0)])
    assert KEYS[0] in again.present(), "it was stored twice"
    again.apply([removed(0)])
    assert KEYS[0] not in again.present()


def test_a_chain_goes_on_in_the_middle_of_an_own_block() -> None:
    engine = EngineBlocks("m")
    engine.apply([stored(range(6), PROMPT[:96], 16)])
    again = EngineBlocks("m")
    again.restore(Entries.unpack(engine.freeze(1).entries().pack()))
    assert again.apply([stored([6, 7], PROMPT[96:128], 16, parent=5)]).stored == KEYS[1:2]
    # A branch that begins where no tokens are kept waits for a parent that it can go on from.
    assert again.apply([stored([16], [1] * 16, 16, parent=1)]).empty
    assert again.waiting == 1


def test_what_spans_a_hole_stays_without_its_key() -> None:
    engine = EngineBlocks("m")
    engine.apply([stored(range(8), PROMPT[:128], 16), removed(5)])
    once = EngineBlocks("m")
    once.restore(engine.freeze(1).entries())
    twice = EngineBlocks("m")
    twice.restore(once.freeze(1).entries())
    for again in (once, twice):
        assert again.present() == list(KEYS[:1])
        assert len(again) == 7


def test_no_more_is_restored_than_the_limit() -> None:
    small = EngineBlocks("m", max_blocks=4)
    small.restore(held().freeze(1).entries())
    assert len(small) == 4


def blob(**changes: Any) -> bytes:
    return msgspec.msgpack.encode(
        msgspec.structs.replace(
            msgspec.msgpack.decode(held().freeze(1).entries().pack(), type=memory._Packed),
            **changes,
        )
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        held().freeze(1).entries().pack()[:-9],
        blob(version=2),
        blob(scheme=1),
        blob(keys=b"123"),
        blob(references=b"no zlib"),
        blob(references=memory._small("I", [0] * 32)),
        blob(references=memory._small("I", [1] * 31)),
        blob(parents=memory._small("i", [-99] * 32)),
        blob(runs=[("GPU", 0, 1, 31)]),
        blob(runs=[("GPU", 0, 1, 33), ("GPU", 0, 1, -1)]),
        blob(tails=[(32, None, b"", b"")]),
    ],
)
def test_what_is_no_memory_is_refused(data: bytes) -> None:
    with pytest.raises(EntriesError):
        Entries.unpack(data)


def test_a_memory_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    data = held().freeze(1).entries().pack()
    monkeypatch.setattr(memory, "MAX_ENTRIES", 31)
    with pytest.raises(EntriesError):
        Entries.unpack(data)
    monkeypatch.setattr(memory, "MAX_ENTRIES", 32)
    assert len(Entries.unpack(data)) == 32
    monkeypatch.setattr(memory, "MAX_COLUMN", 127)
    with pytest.raises(EntriesError, match="too long"):
        Entries.unpack(data)


def mirror(**more: Any) -> tuple[CacheMirror, list[Delta]]:
    deltas: list[Delta] = []
    return CacheMirror(deltas.append, **more), deltas


def before() -> Entries:
    """What a mirror knew that heard messages 0 and 1."""
    cache, _ = mirror()
    cache.serve("m")
    cache.on(frame(0, whole(10)))
    cache.on(frame(1, whole(20)))
    return Entries.unpack(cache.entries().pack())


@pytest.mark.parametrize("model_first", [True, False])
@pytest.mark.parametrize("made_beforehand", [True, False])
def test_a_memory_is_told_once_the_next_message_proves_it(
    model_first: bool, made_beforehand: bool
) -> None:
    cache, deltas = mirror()
    if model_first:
        cache.serve("m")
    assert cache.resume(before(), 1, cache.grown(before()) if made_beforehand else None)
    if not model_first:
        cache.serve("m")
    assert cache.unproven
    assert cache.present() == []
    assert cache.entries() == before(), "it is still the best memory there is"
    cache.on(frame(2, removed_map([10, 11, 12, 13])))
    assert cache.present() == list(KEYS[:1]), "the other copy holds it"
    assert deltas[-1].stored == KEYS[:1]
    cache.on(frame(3, removed_map([20])))
    assert cache.present() == []


@pytest.mark.parametrize("seq", [4, 0])
def test_a_memory_is_dropped_where_messages_were_missed(seq: int) -> None:
    cache, _ = mirror()
    cache.serve("m")
    cache.resume(before(), 1)
    cache.on(frame(seq, stored_map([1], [5] * 64, 64)))
    assert KEYS[0] not in cache.present()
    assert not cache.unproven


def test_a_replay_proves_a_memory_of_an_engine_that_says_nothing_new() -> None:
    cache, _ = mirror(replays=True)
    cache.serve("m")
    cache.resume(before(), 1)
    assert cache.wanted is not None
    assert cache.wanted.start == 1
    cache.replayed(frame(1, whole(20)))
    cache.replay_ended(complete=True)
    assert cache.present() == list(KEYS[:1])


def test_a_memory_that_comes_after_messages_is_not_taken() -> None:
    cache, _ = mirror()
    cache.serve("m")
    cache.on(frame(5))
    assert not cache.resume(before(), 1)
    assert not CacheMirror(lambda _: None).resume(Entries(), None)
    assert CacheMirror(lambda _: None).entries() == Entries()


def test_another_model_or_life_drops_the_memory() -> None:
    for end in (CacheMirror.new_life, lambda cache: cache.serve("other")):
        cache, _ = mirror()
        cache.serve("m")
        cache.resume(before(), 1)
        end(cache)
        cache.on(frame(2))
        assert cache.present() == []


def test_a_memory_holds_no_salt() -> None:
    engine = EngineBlocks("m", naming=Naming.of_pool("p"))
    engine.apply([stored([1], PROMPT[:16], 16, extra_keys=(["s3cret tenant"],))])
    assert b"s3cret" not in engine.freeze(1).entries().pack()


def test_runs_and_tails_are_plain_values() -> None:
    entries = EngineBlocks("m")
    entries.apply([stored([1], PROMPT[:16], 16)])
    found = entries.freeze(None).entries()
    assert found.runs == (Run("GPU", 0, seed_of("m"), 1),)
    assert [replace(tail, tokens=b"") for tail in found.tails] == [Tail(0, None, b"", b"")]


class Noted(CacheMirror):
    """Notes in which thread the blocks of a memory are made, and calls `then` there."""

    thread = 0
    then: Callable[[], None] = staticmethod(lambda: None)

    def grown(self, entries: Entries) -> EngineBlocks:
        self.thread = threading.get_ident()
        self.then()
        return super().grown(entries)


def chronicle() -> tuple[Chronicle, Noted]:
    made = Chronicle(Noted, Life(7))
    assert isinstance(made.mirror, Noted)
    made.mirror.serve("m")
    return made, made.mirror


@pytest.mark.parametrize("large", [True, False])
async def test_only_a_large_memory_is_read_in_a_thread(large: bool) -> None:
    entries = held(*range(512)) if large else held()
    for at in range(0, 5_120 if large else 0, 512):
        entries.apply([stored([2**62 + at + n for n in range(512)], [at + 7] * 512, 1)])
    said = entries.freeze(1).entries().pack()
    assert (len(said) > READ_AT_ONCE) is large
    writer, cache = chronicle()
    await writer.resume(said)
    assert (cache.thread != threading.get_ident()) is large
    writer.frame(frame(2, removed_map([99_999])))
    assert set(KEYS) <= set(cache.present())


async def test_a_memory_of_a_life_that_ended_while_it_was_read_is_dropped() -> None:
    writer, cache = chronicle()
    cache.then = lambda: setattr(writer.life, "start_ms", 8)
    await writer.resume(before().pack())
    assert not cache.unproven
