"""What is wrong though no request fails is told once, counted, and taken back when it is mended."""

from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from structlog.testing import capture_logs

from epp.framework import (
    NO_MATCH,
    Endpoint,
    EndpointId,
    Incarnation,
    Load,
    Match,
    PoolId,
    Rung,
    Source,
)
from epp.observe.watch import ALARMS, HOLD_S, QUIET_S, RECENT, REPEATS, Watch
from epp.state.endpoints import EndpointStatus, Member
from epp.state.records import Done

A, B = (EndpointId(PoolId("p"), name, 8000) for name in "ab")
BUSY = Load(waiting=0, running=1, kv_usage=0.1, age_s=0.1)


def endpoint(ident: EndpointId, match: Match = NO_MATCH, load: Load = BUSY) -> Endpoint:
    return Endpoint(
        id=ident,
        address=f"{ident.name}:8000",
        incarnation=Incarnation(ident, 1),
        match=match,
        load=load,
    )


def status(ident: EndpointId = A) -> EndpointStatus:
    """A member of which everything is known."""
    return EndpointStatus(
        member=Member(id=ident, address=f"{ident.name}:8000"),
        incarnation=Incarnation(ident, 1),
        ready=True,
        rung=Rung.PRECISE,
        blocks=100,
        trust=0.9,
        record_age_s=0.1,
        events=True,
        endpoint=endpoint(ident),
        elsewhere=0,
    )


@dataclass
class Pool:
    members: list[EndpointStatus] = field(default_factory=lambda: [status()])
    counts: Counter[str] = field(default_factory=Counter)

    def overview(self, _: float, /) -> list[EndpointStatus]:
        return self.members


def served(
    watch: Watch,
    count: int,
    *,
    cached: int | None = 640,
    match: Match = NO_MATCH,
    at: EndpointId = A,
) -> None:
    for number in range(count):
        done = Done(decision_id=str(number), cached_tokens=cached)
        watch.done(done, endpoint(at, match), match.tokens)


def lasting(watch: Watch, since: float = 0.0) -> list[str]:
    """What is told from then on, with two looks at it."""
    with capture_logs() as said:
        watch.check(since)
        assert said == []
        watch.check(since + HOLD_S)
    return [line["event"] for line in said if line["log_level"] == "warning"]


def test_a_pool_that_works_raises_nothing() -> None:
    pool = Pool()
    watch = Watch(pool)
    served(watch, 200, match=Match(640, Source.PRECISE))
    assert lasting(watch) == []
    assert watch.active == dict.fromkeys(ALARMS, 0)


def test_repeated_prompts_without_events_are_told() -> None:
    pool = Pool([replace(status(), events=False, blocks=0, rung=Rung.PREDICTED)])
    watch = Watch(pool)
    served(watch, REPEATS - 1)
    assert lasting(watch) == []
    served(watch, 1)
    assert lasting(watch, 20.0) == ["no-events"]
    assert watch.active["no-events"] == 1
    assert watch.by_endpoint() == {str(A): ["no-events"]}


def test_repeats_count_by_prediction_where_the_engine_does_not_say_what_was_cached() -> None:
    watch = Watch(Pool([replace(status(), events=False, blocks=0)]))
    served(watch, REPEATS, cached=None, match=Match(640, Source.PREDICTED, 0.9))
    assert lasting(watch) == ["no-events"]


def test_short_common_beginnings_are_no_repeats() -> None:
    watch = Watch(Pool([replace(status(), events=False, blocks=0)]))
    served(watch, 10 * REPEATS, cached=64)
    assert lasting(watch) == []


def test_events_that_never_bring_a_block_are_told() -> None:
    watch = Watch(Pool([replace(status(), blocks=0)]))
    served(watch, REPEATS)
    assert lasting(watch) == ["no-blocks"]


def test_keys_that_never_match_are_told() -> None:
    watch = Watch(Pool())
    served(watch, RECENT - 1, match=Match(640, Source.PREDICTED, 0.9))
    assert lasting(watch) == []
    served(watch, 1, match=Match(640, Source.PREDICTED, 0.9))
    assert lasting(watch, 20.0) == ["keys-differ"]
    served(watch, 1, match=Match(640, Source.PRECISE))
    with capture_logs() as said:
        watch.check(40.0)
    assert [(line["event"], line["alarm"]) for line in said] == [("mended", "keys-differ")]
    assert watch.active["keys-differ"] == 0


def test_keys_of_another_release_are_told_while_they_come() -> None:
    pool = Pool()
    watch = Watch(pool)
    assert lasting(watch) == []
    pool.counts["blocks-other-scheme"] += 1
    assert lasting(watch, 20.0) == ["other-scheme"]
    watch.check(100.0)
    assert watch.active["other-scheme"] == 0


@pytest.mark.parametrize("load", [Load(), Load(age_s=9.0, total_blocks=100)])
def test_a_pool_in_which_nobody_says_how_busy_it_is_is_told(load: Load) -> None:
    stale = replace(status(), endpoint=endpoint(A, load=load))
    assert lasting(Watch(Pool([stale, status(B)]))) == []
    assert lasting(Watch(Pool([stale]))) == ["all-stale"]
    assert lasting(Watch(Pool([]))) == []


def test_a_store_that_is_away_is_told() -> None:
    assert lasting(Watch(Pool(), connected=lambda: False)) == ["store-away"]


def test_one_line_is_enough_for_all_endpoints_and_for_ten_minutes() -> None:
    silent = [replace(status(ident), blocks=0) for ident in (A, B)]
    pool = Pool(silent)
    watch = Watch(pool)
    for ident in (A, B):
        served(watch, REPEATS, at=ident)
    assert lasting(watch) == ["no-blocks"]
    assert watch.active["no-blocks"] == 2
    pool.members = [status()]
    watch.check(20.0)
    pool.members = silent
    served(watch, REPEATS)
    assert lasting(watch, 30.0) == []
    assert watch.active["no-blocks"] == 1
    pool.members = [status()]
    watch.check(50.0)
    pool.members = silent
    served(watch, REPEATS)
    assert lasting(watch, QUIET_S + 50.0) == ["no-blocks"]


def test_what_is_about_a_member_that_left_is_over() -> None:
    pool = Pool([replace(status(), blocks=0)])
    watch = Watch(pool)
    served(watch, REPEATS)
    assert lasting(watch) == ["no-blocks"]
    pool.members = [status(B)]
    watch.check(20.0)
    assert watch.active["no-blocks"] == 0
    pool.members = [replace(status(), blocks=0)]
    assert lasting(watch, 30.0) == []


def test_what_lasts_only_a_moment_is_not_told() -> None:
    pool, away = Pool(), [True]
    watch = Watch(pool, connected=lambda: not away[0])
    with capture_logs() as said:
        watch.check(0.0)
        away[0] = False
        watch.check(5.0)
        away[0] = True
        watch.check(HOLD_S + 1.0)
    assert said == []
