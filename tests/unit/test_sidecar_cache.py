"""The mirror of an engine's cache over the engine's lives."""

from epp.state.blocks import seed_of, token_keys
from epp.state.engine_blocks import Delta
from epp.state.entries import Entries
from epp.state.events import Frame
from epp.state.writing.cache import CacheMirror
from tests.fakes.kv_publisher import CLEARED_MAP, payload, stored_map

SEED = seed_of("m")


def tokens(number: int) -> list[int]:
    return list(range(number * 1000, number * 1000 + 64))


def key(number: int) -> int:
    return token_keys(tokens(number), SEED)[0]


def frame(seq: int, *numbers: int) -> Frame:
    return Frame(b"kv", seq, payload([stored_map([n], tokens(n), 64) for n in numbers]))


def mirror() -> tuple[CacheMirror, list[Delta]]:
    deltas: list[Delta] = []
    cache = CacheMirror(deltas.append)
    cache.serve("m")
    return cache, deltas


def test_events_before_the_model_is_known_are_not_believed() -> None:
    cache = CacheMirror(lambda _: None)
    assert not cache.on(frame(0, 1))
    assert cache.present() == []
    assert not cache.sees_events
    cache.new_life()


def test_a_duplicate_changes_nothing_and_is_counted() -> None:
    cache, _ = mirror()
    cache.on(frame(1, 1))
    cache.on(frame(1, 2))
    assert cache.present() == [key(1)]
    assert cache.sequence.duplicates == 1


def test_events_of_the_new_life_that_come_before_its_news_are_kept() -> None:
    cache, _ = mirror()
    cache.on(frame(5, 1))
    assert cache.on(frame(0, 2)), "a fallen sequence is a sign of a restart"
    cache.new_life()
    assert cache.present() == [key(2)]


def test_news_of_a_new_life_before_its_events_empty_the_cache() -> None:
    cache, deltas = mirror()
    cache.on(frame(5, 1))
    cache.new_life()
    assert cache.present() == []
    assert deltas[-1].reset
    assert not cache.sees_events
    cache.on(frame(0, 2))
    assert cache.present() == [key(2)]


def test_a_fallen_sequence_of_the_same_life_does_not_save_the_cache_of_a_later_one() -> None:
    cache, _ = mirror()
    cache.on(frame(5, 1))
    cache.on(frame(0, 2))
    cache.same_life()
    cache.new_life()
    assert cache.present() == []


def test_who_missed_messages_for_good_says_so_until_all_is_told_again() -> None:
    cache, _ = mirror()
    assert not cache.partial
    cache.on(frame(0, 1))
    assert not cache.partial
    cache.on(frame(2, 2))
    assert cache.partial
    assert not cache.entries().whole
    cache.on(Frame(b"kv", 3, payload([CLEARED_MAP])))
    assert not cache.partial
    cache.new_life()
    cache.on(frame(7, 3))
    assert cache.partial, "what came before it is not known"


def test_what_an_earlier_writer_had_missed_is_still_missing_after_it() -> None:
    earlier, _ = mirror()
    earlier.on(frame(4, 1))
    later, _ = mirror()
    entries = Entries.unpack(earlier.entries().pack())
    assert later.resume(entries, entries.engine_seq)
    later.on(frame(5, 2))
    assert sorted(later.present()) == sorted([key(1), key(2)])
    assert later.partial
