"""The pure parts of the store: snapshots in parts, kept memories, and where a Redis is."""

from pathlib import Path

import pytest

from epp.errors import ConfigError
from epp.framework import EndpointId, Incarnation, PoolId
from epp.state.records import EngineStatus, Part, Record, TierChange, parse
from epp.state.snapshots import parts
from epp.state.store.memories import PIECE, Assembly, Memories, pieces
from epp.state.store.place import read_access

A = EndpointId(PoolId("p"), "a", 8000)
B = EndpointId(PoolId("p"), "b", 8000)
HEAD = Record(
    incarnation=Incarnation(A, 5), nonce=7, seq=3, status=EngineStatus(ready=True, events=True)
)


def test_a_snapshot_is_cut_into_parts_of_which_the_first_resets_and_tells_the_load() -> None:
    cut = [parse(one) for one in parts(HEAD, [1, 2, 3], {"CPU": (4,)}, keys_per_part=2)]
    assert [one.part for one in cut] == [Part(0, 3), Part(1, 3), Part(2, 3)]
    assert [one.reset for one in cut] == [True, False, False]
    assert [one.status for one in cut] == [HEAD.status, None, None]
    changes = [one.blocks for one in cut if one.blocks is not None]
    assert [change.stored for change in changes] == [(1, 2), (3,), ()]
    assert changes[2].tiers == (TierChange("CPU", (4,)),)
    assert {(one.nonce, one.seq) for one in cut} == {(7, 3)}


def test_a_snapshot_of_nothing_is_one_part_that_resets() -> None:
    (only,) = parts(HEAD, [], {})
    assert parse(only).reset


def test_a_memory_is_kept_for_its_own_life_only() -> None:
    memories = Memories()
    memories.keep(Incarnation(A, 5), b"five")
    assert memories.recall(Incarnation(A, 5)) == b"five"
    assert memories.recall(Incarnation(A, 6)) == b""
    memories.keep(Incarnation(A, 6), b"six")
    assert memories.recall(Incarnation(A, 5)) == b""
    memories.retain({B})
    assert memories.bytes == 0


def test_memories_are_bounded_one_by_one_and_together() -> None:
    memories = Memories(most_bytes=10, most_one=6)
    memories.keep(Incarnation(A, 1), b"x" * 7)
    assert memories.recall(Incarnation(A, 1)) == b""
    memories.keep(Incarnation(A, 1), b"a" * 6)
    memories.keep(Incarnation(B, 1), b"b" * 6)
    assert memories.recall(Incarnation(A, 1)) == b""
    assert memories.recall(Incarnation(B, 1)) == b"b" * 6
    assert (memories.bytes, memories.refused) == (6, 2)


@pytest.mark.parametrize("size", [0, 1, PIECE, 2 * PIECE + 1])
def test_pieces_make_the_memory_again(size: int) -> None:
    memory = bytes(size)
    cut = pieces(memory)
    assembly = Assembly()
    last = len(cut) - 1
    got = [assembly.add(one, index, last=index == last) for index, one in enumerate(cut)]
    assert got[:-1] == [None] * last
    assert got[-1] == memory


def test_a_piece_out_of_order_or_beyond_the_limit_spoils_the_whole() -> None:
    assembly = Assembly(most_one=4)
    assembly.add(b"ab", 0, last=False)
    assert assembly.add(b"cd", 2, last=True) is None
    assert assembly.add(b"cd", 1, last=True) is None
    assembly.add(b"ab", 0, last=False)
    assert assembly.add(b"cde", 1, last=True) is None
    assert assembly.add(b"abcd", 0, last=True) == b"abcd"


def test_a_url_says_where_redis_is() -> None:
    single = read_access("rediss://user:p%40ss@host/3", password="other", ca_file=Path("ca"))
    assert (single.kind, single.hosts, single.database) == ("single", (("host", 6379),), 3)
    assert (single.tls, single.user, single.password) == (True, "user", "p@ss")
    watched = read_access("redis+sentinel://user@a:1,b/service/2", password="word")
    assert watched.hosts == (("a", 1), ("b", 26379))
    assert (watched.service, watched.database, watched.password) == ("service", 2, "word")
    assert read_access("redis+cluster://a:1,[::1]:2").hosts == (("a", 1), ("::1", 2))
    assert watched.where == "a:1,b:26379"


@pytest.mark.parametrize(
    "url",
    [
        "http://secret@host",
        "redis+other://secret@host",
        "redis://secret@a,b",
        "redis://secret@host:x",
        "redis://secret@host/x",
        "redis://secret@host/1/2",
        "redis://secret@host/?db=1",
        "redis+sentinel://secret@host",
        "redis+cluster://secret@host/1",
    ],
)
def test_an_odd_url_is_refused_without_being_quoted(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_access(url)
    assert "secret" not in str(caught.value)
