"""Faults B and C that the pool's state must get right, on the real parts without sockets."""

from dataclasses import replace

import pytest

from epp.control.files import parse_endpoints
from epp.framework import (
    Endpoint,
    EndpointId,
    Incarnation,
    Match,
    PoolId,
    Request,
    Rung,
    Source,
)
from epp.state.endpoints import Endpoints, Member
from epp.state.load import LoadBook
from epp.state.metrics_page import parse_page
from epp.state.pool import PoolState
from epp.state.prefix.index import PrefixIndex
from epp.state.prefix.predicted import PredictedIndex
from epp.state.records import (
    BlockChange,
    Done,
    EngineStatus,
    FirstToken,
    Outcome,
    Record,
    TierChange,
    encode,
)
from epp.state.reports import LoadReport

POOL = PoolId("p")
KEYS = tuple(range(1, 9))


def member(name: str, address: str = "127.0.0.1:8000", *, sidecar: bool = True) -> Member:
    return Member(
        id=EndpointId(POOL, name, 8000),
        address=address,
        has_sidecar=sidecar,
        metrics_url=f"http://{address}/metrics",
    )


def new_state(*members: Member) -> PoolState:
    state = PoolState(
        POOL, Endpoints(), PrefixIndex(1_000), PredictedIndex(1_000, 60.0), LoadBook()
    )
    state.replace(members, 0.0)
    return state


def say(state: PoolState, name: str, seq: int, now: float, *, start: int = 1, **fields) -> None:
    defaults = {"status": EngineStatus(ready=True, events=True), "nonce": 1}
    record = Record(
        incarnation=Incarnation(EndpointId(POOL, name, 8000), start),
        seq=seq,
        **{**defaults, **fields},
    )
    state.apply(encode(record), now)


def full(*stored: int) -> BlockChange:
    return BlockChange(stored=stored, reset=True)


def see(state: PoolState, name: str, now: float) -> Endpoint:
    found = state.candidates(KEYS, block_tokens=64, prompt_tokens=600, now=now)
    return next(e for e in found if e.id.name == name)


def request(name: str, keys: tuple[int, ...] = KEYS) -> Request:
    return Request(
        id=name, api="completions", path="/", prompt_tokens=600, output_tokens=100, keys=keys
    )


def test_B02_endpoints_stay_candidates_when_all_metrics_are_stale() -> None:
    """Red when a failed scrape that is no refusal makes an endpoint not ready
    (PoolState.scrape_failed), or when stale reports still count (LoadBook.load)."""
    state = new_state(member("a", sidecar=False), member("b", sidecar=False))
    for name in "ab":
        page = parse_page(b"vllm:num_requests_waiting 50\n")
        state.scraped(EndpointId(POOL, name, 8000), page, 0.0)
    for second in range(1, 60):
        for name in "ab":
            state.scrape_failed(EndpointId(POOL, name, 8000), float(second), refused=False)
    found = state.ready(60.0)
    assert len(found) == 2
    assert all(e.load.waiting is None and e.load.queue is None for e in found)
    state.charge(found[0], request("r"), 60.0)
    assert [e.load.queue for e in state.ready(60.0)] == [1, None]


def test_B03_an_absent_family_is_unknown_and_spoils_nothing_else() -> None:
    """Red when a missing family becomes 0 or fails the page (metrics_page.parse_page)."""
    page = parse_page(b'vllm:num_requests_waiting{engine="0"} 2\n')
    assert page.report == LoadReport(waiting=2)
    assert page.report.kv_usage is None


def test_B04_old_and_new_names_are_read_alike() -> None:
    """Red without the old name in framework.engines.VLLM; the new one goes first."""
    old = parse_page(b"vllm:gpu_cache_usage_perc 0.95\n").report
    new = parse_page(b"vllm:kv_cache_usage_perc 0.05\n").report
    both = parse_page(b"vllm:gpu_cache_usage_perc 0.9\nvllm:kv_cache_usage_perc 0.1\n").report
    assert (old.kv_usage, new.kv_usage, both.kv_usage) == (0.95, 0.05, 0.1)


def test_B05_series_of_several_engines_are_summed() -> None:
    """Red when the last series wins (metrics_page._total)."""
    page = parse_page(
        b'vllm:num_requests_waiting{engine="0",model_name="m"} 50\n'
        b'vllm:num_requests_waiting{engine="1",model_name="m"} 0\n'
        b'vllm:kv_cache_usage_perc{engine="0"} 0.9\n'
        b'vllm:kv_cache_usage_perc{engine="1"} 0.1\n'
    )
    assert page.report.waiting == 50
    assert page.report.kv_usage == pytest.approx(0.5)


def test_B13_a_flapping_endpoint_never_counts_below_zero() -> None:
    """Red without LoadBook.forget in PoolState._forget, or when `finish` subtracts from the
    endpoint's count instead of ending its own reservation."""
    state = new_state(member("a"))
    for number in range(20):
        state.charge(see(state, "a", 0.0), request(f"old-{number}"), 0.0)
    state.replace([], 1.0)
    state.replace([member("a")], 2.0)
    assert see(state, "a", 2.0).load.reserved_requests == 0
    state.charge(see(state, "a", 2.0), request("new"), 2.0)
    for number in range(20):
        state.first_byte(f"old-{number}", 3.0)
        state.finished(f"old-{number}", 3.0)
        load = see(state, "a", 3.0).load
        assert (load.reserved_requests, load.reserved_pending) == (1, 1)
        assert load.reserved_prefill_tokens > 0
    state.finished("new", 4.0)
    load = see(state, "a", 4.0).load
    assert (load.reserved_requests, load.reserved_pending, load.reserved_prefill_tokens) == (
        0,
        0,
        0,
    )


def test_B13_late_ends_of_an_earlier_life_leave_the_new_one_alone() -> None:
    """Red when a restarted engine takes over what its earlier life held (PoolState._born)."""
    state = new_state(member("a"))
    say(state, "a", 1, 0.0, start=1, blocks=full())
    state.charge(see(state, "a", 0.0), request("old"), 0.0)
    say(state, "a", 1, 1.0, start=2, nonce=2, blocks=full())
    assert see(state, "a", 1.0).load.reserved_requests == 0
    state.charge(see(state, "a", 1.0), request("new"), 1.0)
    state.finished("old", 2.0)
    assert see(state, "a", 2.0).load.reserved_requests == 1


def test_B14_no_clock_ends_a_stream_that_lives() -> None:
    """Red when `reserve` gives a reservation a deadline, or `tick` looks at its age."""
    state = new_state(member("a"), member("plain", sidecar=False))
    for name in ("a", "plain"):
        for number in range(10):
            state.charge(see(state, name, 0.0), request(f"{name}-{number}"), 0.0)
            state.response_headers(f"{name}-{number}", 200, 0.1)
            state.first_byte(f"{name}-{number}", 0.2)
    for second in range(1, 4_000, 13):
        state.tick(float(second))
        state.scraped(
            EndpointId(POOL, "plain", 8000), parse_page(b"vllm:num_requests_waiting 0"), second
        )
    assert see(state, "a", 4_000.0).load.reserved_requests == 10
    assert see(state, "plain", 4_000.0).load.reserved_requests == 10


def test_B15_prefill_load_ends_with_the_first_byte_and_decode_load_with_the_answer() -> None:
    """Red when LoadBook.first_token does not release the prefill, or response_headers does."""
    state = new_state(member("a"), member("b"))
    say(state, "a", 1, 0.0, blocks=full())
    for name in ("seen-here", "seen-by-the-sidecar"):
        state.charge(see(state, "a", 0.0), request(name, keys=()), 0.0)
        state.response_headers(name, 200, 0.1)
    assert see(state, "a", 0.9).load.reserved_prefill_tokens == 1_200
    state.first_byte("seen-here", 1.0)
    assert see(state, "a", 1.0).load.reserved_prefill_tokens == 600
    say(state, "a", 2, 1.1, first_tokens=(FirstToken("seen-by-the-sidecar"),))
    load = see(state, "a", 1.1).load
    assert (load.reserved_prefill_tokens, load.reserved_pending) == (0, 0)
    assert load.reserved_requests == 2
    state.finished("seen-here", 30.0)
    state.finished("seen-by-the-sidecar", 31.0)
    assert see(state, "a", 31.0).load.reserved_requests == 0
    assert see(state, "b", 31.0).load.reserved_requests == 0


def test_B20_nothing_of_a_removed_endpoint_stays() -> None:
    """Red when PoolState.replace does not call `_forget`, or keeps the trust."""
    state = new_state(member("a"), member("b"))
    say(state, "a", 1, 0.0, blocks=full(*KEYS))
    for number in range(5):
        state.charge(see(state, "a", 0.0), request(f"r{number}"), 0.0)
    state._trust.observe(EndpointId(POOL, "a", 8000), Match(512, Source.PREDICTED), 0)
    state.replace([member("b")], 1.0)
    assert [status.member.id.name for status in state.overview(1.0)] == ["b"]
    assert [e.id.name for e in state.ready(1.0)] == ["b"]
    assert state._load.sums() == {}
    assert not state._mirror._feeds
    assert not state._trust
    for tick in range(70):
        state.tick(2.0 + tick)
    assert len(state._charges) == 0
    state.replace([member("a"), member("b")], 100.0)
    assert see(state, "a", 100.0).match.tokens == 0
    assert len(state._mirror._index) == 0


def test_C03_late_records_of_a_removed_endpoint_are_dropped_and_counted() -> None:
    """Red without the membership check in PoolState.apply."""
    state = new_state(member("a"))
    say(state, "a", 1, 0.0, blocks=full(*KEYS))
    state.replace([], 1.0)
    for seq in range(2, 102):
        say(state, "a", seq, 2.0, blocks=BlockChange(stored=(seq,)))
    assert state.counts["record-no-member"] == 100
    assert not state._mirror._feeds
    state.tick(3.0)
    assert len(state._mirror._index) == 0


def test_C04_the_same_address_under_a_new_uid_inherits_nothing() -> None:
    """Red when anything is keyed by name or address instead of the uid (control.files)."""
    line = "endpoints: [{name: web-0, uid: %s, address: 127.0.0.2, port: 8000}]"

    def listed(uid: str) -> list[Member]:
        return parse_endpoints((line % uid).encode(), "e", POOL)

    state = new_state(*listed("uid-1"))
    say(state, "uid-1", 1, 0.0, blocks=full(*KEYS))
    state.charge(see(state, "uid-1", 0.0), request("r"), 0.0)
    state.replace(listed("uid-2"), 1.0)
    fresh = see(state, "uid-2", 1.0)
    assert fresh.address == "127.0.0.2:8000"
    assert (fresh.match.tokens, fresh.load.reserved_requests) == (0, 0)
    say(state, "uid-1", 2, 1.1, blocks=full(*KEYS))
    assert see(state, "uid-2", 1.1).match.tokens == 0


def test_C04_the_same_identity_restarted_inherits_nothing() -> None:
    """Red when a later start is no other life (Endpoints.born), and, for what stays in memory,
    without `_forget(before)` in PoolState._born."""
    state = new_state(member("a"))
    say(state, "a", 1, 0.0, start=1, blocks=full(*KEYS))
    assert see(state, "a", 0.0).match.tokens == 512
    say(state, "a", 2, 1.0, start=2)
    assert see(state, "a", 1.0).match.tokens == 0
    state.tick(1.1)
    assert len(state._mirror._index) == 0


def test_C05_a_jump_drops_the_blocks_and_steps_down_until_the_next_full_state() -> None:
    """Red without the jump in Feed._judge, or without `clear` in Mirror.accept."""
    state = new_state(member("a"))
    say(state, "a", 1, 0.0, blocks=full(*KEYS))
    assert state.rung(EndpointId(POOL, "a", 8000), 0.0) is Rung.PRECISE
    say(state, "a", 3, 0.1)
    assert see(state, "a", 0.1).match.tokens == 0
    assert state.rung(EndpointId(POOL, "a", 8000), 0.1) is Rung.PREDICTED
    assert state.counts["feed-gap"] == 1
    say(state, "a", 4, 0.2, blocks=full(*KEYS))
    assert see(state, "a", 0.2).match.tokens == 512
    assert state.rung(EndpointId(POOL, "a", 8000), 0.2) is Rung.PRECISE


def test_C05_a_new_writer_without_a_full_state_is_a_jump_too() -> None:
    """Red without the look at the nonce in Feed._judge."""
    state = new_state(member("a"))
    say(state, "a", 1, 0.0, blocks=full(*KEYS))
    say(state, "a", 2, 0.1, nonce=2)
    assert see(state, "a", 0.1).match.tokens == 0


def test_C18_a_tier_that_turned_out_to_be_slow_counts_for_what_it_saves() -> None:
    """`Charging._take_done` learns from the answers to prompts that were loaded."""
    state, keys = new_state(member("a")), tuple(range(100))
    prompt = Request(id="", api="completions", path="/", prompt_tokens=6_410, keys=keys)
    say(state, "a", 1, 0.0, blocks=BlockChange(reset=True, tiers=(TierChange("CPU", keys),)))

    def found(now: float) -> Endpoint:
        return state.candidates(keys, block_tokens=64, prompt_tokens=6_410, now=now)[0]

    assert found(0.0).match.credited_tokens > 6_000
    for seq in range(2, 7):
        now = 20.0 * seq  # what was predicted of the last one is over
        say(state, "a", 2 * seq - 2, now)
        chosen = found(now)
        assert dict(chosen.match.loaded) == {"CPU": 6_400}
        state.charge(chosen, replace(prompt, id=str(seq)), now)
        said = Done(
            decision_id=str(seq),
            outcome=Outcome.OK,
            status=200,
            prompt_tokens=6_410,
            cached_tokens=6_400,
            completion_tokens=11,
            ttft_s=1.0,
            duration_s=2.0,
        )
        say(
            state,
            "a",
            2 * seq - 1,
            now + 2.0,
            first_tokens=(FirstToken(str(seq), 1.0),),
            done=(said,),
        )
        state.tick(now + 10.0)
    say(state, "a", 12, 140.0)
    assert 0 < found(140.0).match.credited_tokens < 0.3 * 6_400


def test_C21_ipv6_has_one_identity_and_a_bracketed_address_everywhere() -> None:
    """Red when the address is not bracketed in control.files, or when an id is cut at colons."""
    members = parse_endpoints(
        b"endpoints:\n"
        b"- {name: a, address: '::1', port: 8000}\n"
        b"- {name: a, address: '[::1]', port: 8001}\n",
        "e",
        POOL,
    )
    assert [m.address for m in members] == ["[::1]:8000", "[::1]:8001"]
    assert members[0].metrics_url == "http://[::1]:8000/metrics"
    state = new_state(*members)
    record = Record(
        incarnation=Incarnation(members[1].id, 1),
        nonce=1,
        seq=1,
        blocks=full(*KEYS),
        status=EngineStatus(ready=True, events=True),
    )
    state.apply(encode(record), 0.0)
    found = state.candidates(KEYS, block_tokens=64, prompt_tokens=600, now=0.0)
    assert {e.address: e.match.tokens for e in found} == {"[::1]:8000": 0, "[::1]:8001": 512}
