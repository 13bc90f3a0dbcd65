"""The facade over membership, index, predictions and load, with the real parts behind it."""

import pytest

from epp.framework import Endpoint, EndpointId, Incarnation, PoolId, Request, Rung, Source
from epp.state.blocks import SCHEME
from epp.state.charges import Charges
from epp.state.endpoints import Endpoints, Member
from epp.state.load import LoadBook
from epp.state.metrics_page import EngineMetrics
from epp.state.pace import PRIOR_PREFILL_TOKENS_PER_S as PRIOR
from epp.state.pool import PoolState
from epp.state.prefix.index import PrefixIndex
from epp.state.prefix.predicted import PredictedIndex
from epp.state.records import (
    BlockChange,
    Done,
    EngineStatus,
    FirstToken,
    Outcome,
    Part,
    Record,
    TierChange,
    encode,
)
from epp.state.replicas import own
from epp.state.reports import LoadReport
from epp.state.rules import PoolRules

POOL = PoolId("p")
A, B = EndpointId(POOL, "a", 1), EndpointId(POOL, "b", 1)
KEYS = tuple(range(100, 110))


def request(name: str = "r", keys: tuple[int, ...] = KEYS, output: int = 64) -> Request:
    return Request(
        id=name,
        api="completions",
        path="/v1/completions",
        prompt_tokens=64 * len(keys) + 10,
        output_tokens=output,
        keys=keys,
        exact=True,
    )


class Writer:
    """A sidecar's records, without the sidecar."""

    def __init__(self, state: PoolState, endpoint: EndpointId, start_ms: int = 1, nonce: int = 1):
        self.state = state
        self.life = Incarnation(endpoint, start_ms)
        self.nonce = nonce
        self.seq = 0

    def say(self, now: float, *, seq: int | None = None, reset: bool = False, **fields) -> None:
        self.seq = self.seq + 1 if seq is None else seq
        blocks = fields.pop("blocks", None)
        stored, removed = fields.pop("stored", ()), fields.pop("removed", ())
        if blocks is None and (reset or stored or removed):
            blocks = BlockChange(stored=stored, removed=removed, reset=reset)
        status = fields.pop("status", EngineStatus(ready=True, events=True))
        self.state.apply(
            encode(
                Record(
                    incarnation=self.life,
                    nonce=self.nonce,
                    seq=self.seq,
                    blocks=blocks,
                    status=status,
                    **fields,
                )
            ),
            now,
        )


def new_state(*, sidecars: bool = True, **rules) -> PoolState:
    state = PoolState(
        POOL,
        Endpoints(),
        PrefixIndex(10_000),
        PredictedIndex(10_000, 300.0),
        LoadBook(),
        rules=PoolRules(**rules),
        charges=Charges(limit=1_000),
    )
    state.replace(
        [
            Member(id=A, address="10.0.0.1:1", has_sidecar=sidecars, metrics_url="http://a/m"),
            Member(id=B, address="[::1]:1", has_sidecar=sidecars, metrics_url="http://b/m"),
        ],
        0.0,
    )
    return state


@pytest.fixture
def state() -> PoolState:
    return new_state()


def pick(state: PoolState, endpoint: EndpointId, now: float, keys=KEYS) -> Endpoint:
    found = state.candidates(keys, block_tokens=64, prompt_tokens=64 * len(keys) + 10, now=now)
    return next(e for e in found if e.id == endpoint)


def test_blocks_of_a_writer_are_precise_matches(state: PoolState) -> None:
    a = Writer(state, A)
    a.say(0.0, reset=True, stored=KEYS[:4])
    assert state.rung(A, 0.0) is Rung.PRECISE
    assert state.rung(B, 0.0) is Rung.PREDICTED
    match = pick(state, A, 0.0).match
    assert (match.tokens, match.source, match.trust) == (256, Source.PRECISE, 1.0)
    assert pick(state, B, 0.0).match.tokens == 0
    a.say(0.1, removed=KEYS[2:3])
    assert pick(state, A, 0.1).match.tokens == 128


def test_keys_of_another_block_size_match_nothing(state: PoolState) -> None:
    Writer(state, A).say(0.0, reset=True, stored=KEYS)
    found = state.candidates(KEYS, block_tokens=32, prompt_tokens=640, now=0.0)
    assert all(e.match.tokens == 0 for e in found)
    assert [e.match.tokens for e in state.ready(0.0)] == [0, 0]


def test_a_match_never_exceeds_the_prompt(state: PoolState) -> None:
    Writer(state, A).say(0.0, reset=True, stored=KEYS)
    found = state.candidates(KEYS, block_tokens=64, prompt_tokens=600, now=0.0)
    assert found[0].match.tokens == 600


def test_a_charge_shows_at_once_and_predicts_its_prompt(state: PoolState) -> None:
    chosen = pick(state, A, 0.0)
    state.charge(chosen, request(), 0.0)
    after = pick(state, A, 0.1)
    assert after.load.reserved_requests == 1
    assert after.load.reserved_prefill_tokens == 650
    assert after.load.reserved_decode_blocks == 45
    assert (after.match.tokens, after.match.source) == (640, Source.PREDICTED)
    assert after.match.credited_tokens == pytest.approx(576)
    state.charge(after, request("r2"), 0.1)
    assert pick(state, A, 0.1).load.reserved_prefill_tokens == 650 + 650 - 576


def test_the_better_of_precise_and_trusted_prediction_counts(state: PoolState) -> None:
    state.charge(pick(state, A, 0.0), request(), 0.0)
    Writer(state, B).say(0.0, reset=True, stored=KEYS)
    state.charge(pick(state, B, 0.0), request("r2"), 0.0)
    assert pick(state, B, 0.1).match.source is Source.PRECISE
    assert pick(state, A, 0.1).match.source is Source.PREDICTED


def test_trust_follows_what_truly_was_cached(state: PoolState) -> None:
    a = Writer(state, A)
    a.say(0.0, reset=True)
    for number in range(60):
        now = float(number)
        state.charge(pick(state, A, now), request(f"r{number}"), now)
        done = Done(decision_id=f"r{number}", outcome=Outcome.OK, status=200, cached_tokens=0)
        a.say(now + 0.5, done=(done,), first_tokens=(FirstToken(f"r{number}"),))
    trust = pick(state, A, 60.0).match.trust
    assert 0.0 <= trust < 0.01
    status = next(s for s in state.overview(60.0) if s.member.id == A)
    assert status.trust == trust


def test_done_is_told_to_those_who_asked(state: PoolState) -> None:
    heard: list[tuple[str, str, int]] = []
    state.on_done.append(lambda d, e, tokens: heard.append((d.decision_id, e.id.name, tokens)))
    a = Writer(state, A)
    a.say(0.0, reset=True, stored=KEYS[:2])
    state.charge(pick(state, A, 0.0), request(), 0.0)
    state.finished("r", 1.0)
    a.say(1.1, done=(Done(decision_id="r", outcome=Outcome.OK, status=200),))
    a.say(1.2, done=(Done(decision_id="r", outcome=Outcome.OK, status=200),))
    assert heard == [("r", "a", 128)]
    assert state.counts["done-unknown"] == 1


def test_a_writer_has_no_say_in_another_endpoints_requests(state: PoolState) -> None:
    state.charge(pick(state, A, 0.0), request(), 0.0)
    b = Writer(state, B)
    b.say(0.0, reset=True, done=(Done(decision_id="r"),), first_tokens=(FirstToken("r"),))
    assert pick(state, A, 0.0).load.reserved_pending == 1
    assert state.counts["done-elsewhere"] == 1


def serve_elsewhere(state: PoolState, now: float = 0.5, to: EndpointId = B) -> None:
    """The gateway took the answer to `r` from the second of our list."""
    chosen = [pick(state, A, now), pick(state, to, now)]
    state.served_by(request(), chosen[1].address, chosen, now)


def loads(state: PoolState, now: float) -> list[tuple[int, int]]:
    """Requests and prompt tokens charged to A and to B."""
    return [
        (load.reserved_requests, load.reserved_prefill_tokens)
        for load in (pick(state, A, now).load, pick(state, B, now).load)
    ]


def test_load_and_predictions_go_to_the_endpoint_that_truly_serves(state: PoolState) -> None:
    state.charge(pick(state, A, 0.0), request(), 0.0)
    assert loads(state, 0.1) == [(1, 650), (0, 0)]
    serve_elsewhere(state)
    assert loads(state, 0.6) == [(0, 0), (1, 650)]
    assert pick(state, A, 0.6).match.tokens == 0
    assert pick(state, B, 0.6).match.tokens == 640
    serve_elsewhere(state)
    assert loads(state, 0.6) == [(0, 0), (1, 650)]
    state.response_headers("r", 200, 0.6)
    state.first_byte("r", 0.7)
    assert loads(state, 0.8) == [(0, 0), (1, 0)]
    state.finished("r", 1.0)
    assert loads(state, 1.1) == [(0, 0), (0, 0)]
    serve_elsewhere(state, 1.2, to=A)
    assert loads(state, 1.3) == [(0, 0), (0, 0)]


def test_an_endpoint_that_failed_over_teaches_nothing_about_speed(state: PoolState) -> None:
    state.charge(pick(state, A, 0.0), request(), 0.0)
    serve_elsewhere(state, 5.0)
    state.first_byte("r", 5.001)
    life = state.endpoints.incarnation(B)
    assert life is not None
    assert state._load.prefill_tokens_per_s(life) == state._load.rules.prefill_tokens_per_s


def test_what_the_serving_sidecar_said_too_early_counts_once_it_is_known(state: PoolState) -> None:
    heard: list[str] = []
    state.on_done.append(lambda done, endpoint, tokens: heard.append(endpoint.id.name))
    state.charge(pick(state, A, 0.0), request(), 0.0)
    b = Writer(state, B)
    b.say(0.1, reset=True, first_tokens=(FirstToken("r"),))
    assert loads(state, 0.2) == [(1, 650), (0, 0)]
    serve_elsewhere(state)
    assert loads(state, 0.6) == [(0, 0), (1, 0)]
    b.say(0.7, done=(Done(decision_id="r", outcome=Outcome.OK, status=200),))
    assert (loads(state, 0.8), heard) == ([(0, 0), (0, 0)], ["b"])


def test_a_request_that_nobody_of_ours_serves_is_no_load(state: PoolState) -> None:
    state.charge(pick(state, A, 0.0), request(), 0.0)
    state.served_by(request(), "192.0.2.1:1", [pick(state, A, 0.1)], 0.1)
    assert loads(state, 0.2) == [(0, 0), (0, 0)]
    assert pick(state, A, 0.2).match.tokens == 0
    assert state.counts["charge-no-member"] == 1


def test_a_member_outside_of_our_list_takes_the_load_without_a_match(state: PoolState) -> None:
    state.charge(pick(state, A, 0.0), request(), 0.0)
    state.served_by(request(), pick(state, B, 0.1).address, [pick(state, A, 0.1)], 0.1)
    assert loads(state, 0.2) == [(0, 0), (1, 650)]


def test_predictions_end_with_the_first_event_batch_after_the_first_token(
    state: PoolState,
) -> None:
    a = Writer(state, A)
    a.say(0.0, reset=True)
    state.charge(pick(state, A, 0.0), request(), 0.0)
    a.say(1.0, stored=(7,))
    assert pick(state, A, 1.0).match.tokens == 640
    a.say(2.0, first_tokens=(FirstToken("r"),))
    a.say(2.02)
    assert pick(state, A, 2.02).match.tokens == 640
    a.say(2.04, stored=KEYS[:3])
    match = pick(state, A, 2.04).match
    assert (match.tokens, match.source) == (192, Source.PRECISE)


def test_predictions_end_five_seconds_after_the_first_token(state: PoolState) -> None:
    a = Writer(state, A)
    a.say(0.0, reset=True)
    state.charge(pick(state, A, 0.0), request(), 0.0)
    state.first_byte("r", 1.0)
    for tenth in range(10, 70):
        a.say(tenth / 10)
        state.tick(tenth / 10)
        assert bool(pick(state, A, tenth / 10).match.tokens) == (tenth < 60)


def test_unconfirmed_predictions_are_bounded() -> None:
    state = new_state(max_unconfirmed=3)
    Writer(state, A).say(0.0, reset=True)
    for number in range(10):
        keys = (number,)
        state.charge(pick(state, A, 0.0), request(f"r{number}", keys), 0.0)
        state.first_byte(f"r{number}", 0.0)
    held = [pick(state, A, 0.1, (number,)).match.tokens for number in range(10)]
    assert held == [0] * 7 + [64] * 3


def test_a_failed_answer_drops_its_prediction(state: PoolState) -> None:
    for name, status in (("ok", 200), ("bad", 503)):
        keys = (ord(name[0]),)
        state.charge(pick(state, A, 0.0), request(name, keys), 0.0)
        state.response_headers(name, status, 0.1)
        assert bool(pick(state, A, 0.2, keys).match.tokens) == (name == "ok")


@pytest.mark.parametrize(
    ("outcome", "first", "kept"),
    [
        (Outcome.OK, True, True),
        (Outcome.ENGINE_ERROR, True, False),
        (Outcome.ENGINE_GONE, True, False),
        (Outcome.CLIENT_GONE, False, False),
        (Outcome.CLIENT_GONE, True, True),
    ],
)
def test_an_outcome_keeps_or_drops_the_prediction(
    outcome: Outcome, first: bool, kept: bool
) -> None:
    state = new_state()
    a = Writer(state, A)
    a.say(0.0, reset=True, status=EngineStatus(ready=True, events=False))
    state.charge(pick(state, A, 0.0), request(), 0.0)
    if first:
        state.first_byte("r", 0.1)
    a.say(0.2, done=(Done(decision_id="r", outcome=outcome, status=200),))
    assert bool(pick(state, A, 0.2).match.tokens) == kept


def test_a_reset_before_the_headers_drops_load_and_prediction(state: PoolState) -> None:
    state.charge(pick(state, A, 0.0), request(), 0.0)
    state.reset("r", answered=False, now=0.5)
    after = pick(state, A, 0.5)
    assert (after.load.reserved_requests, after.match.tokens) == (0, 0)


def test_a_stream_that_ends_after_headers_waits_for_the_sidecar(state: PoolState) -> None:
    a = Writer(state, A)
    a.say(0.0, reset=True)
    state.charge(pick(state, A, 0.0), request(), 0.0)
    state.response_headers("r", 200, 0.1)
    state.reset("r", answered=True, now=0.1)
    for second in range(1, 100):
        a.say(float(second))
        state.tick(float(second))
    assert pick(state, A, 99.0).load.reserved_requests == 1
    a.say(100.0, done=(Done(decision_id="r", outcome=Outcome.OK, status=200),))
    assert pick(state, A, 100.0).load.reserved_requests == 0


def test_a_writer_that_dies_leaves_no_reservation_behind(state: PoolState) -> None:
    a = Writer(state, A)
    a.say(0.0, reset=True)
    state.charge(pick(state, A, 0.0), request(), 0.0)
    state.response_headers("r", 200, 0.1)
    state.reset("r", answered=True, now=0.1)
    for tenth in range(1, 620):
        state.tick(tenth / 10)
    assert pick(state, A, 62.0).load.reserved_requests == 0
    assert len(state._charges) == 1
    state.tick(200.0)
    assert len(state._charges) == 0


def test_a_silent_writer_is_one_step_down_and_its_load_unknown(state: PoolState) -> None:
    a = Writer(state, A)
    status = EngineStatus(report=LoadReport(waiting=0, kv_usage=0.1), ready=True, events=True)
    a.say(0.0, reset=True, stored=KEYS, status=status)
    assert pick(state, A, 2.0).load.waiting == 0
    stale = pick(state, A, 2.1)
    assert state.rung(A, 2.1) is Rung.PREDICTED
    assert stale.load.waiting is None
    assert (stale.match.tokens, stale.match.source) == (640, Source.PREDICTED)
    assert stale.match.trust == 0.9
    a.say(3.0, status=status)
    assert state.rung(A, 3.0) is Rung.PRECISE
    assert pick(state, A, 3.0).match.source is Source.PRECISE


def test_without_events_blocks_are_predictions_only(state: PoolState) -> None:
    Writer(state, A).say(0.0, reset=True, status=EngineStatus(ready=True, events=False))
    assert state.rung(A, 0.0) is Rung.PREDICTED


def test_after_joining_late_the_mirror_fills_from_what_follows(state: PoolState) -> None:
    a = Writer(state, A)
    a.say(0.0, seq=40, stored=KEYS[:3])
    assert state.rung(A, 0.0) is Rung.PREDICTED
    assert pick(state, A, 0.0).match.tokens == 192
    a.say(0.1, reset=True, stored=KEYS)
    assert state.rung(A, 0.1) is Rung.PRECISE


def test_a_restart_forgets_what_the_old_life_held(state: PoolState) -> None:
    Writer(state, A, start_ms=10).say(0.0, reset=True, stored=KEYS)
    state.charge(pick(state, A, 0.0), request(), 0.0)
    Writer(state, A, start_ms=20, nonce=2).say(1.0, reset=True)
    after = pick(state, A, 1.0)
    assert after.match.tokens == 0
    assert after.load.reserved_requests == 0
    Writer(state, A, start_ms=10, nonce=3).say(1.1, reset=True, stored=KEYS)
    assert pick(state, A, 1.1).match.tokens == 0
    assert state.counts["record-old-life"] == 1


def test_the_first_report_of_a_start_keeps_earlier_reservations(state: PoolState) -> None:
    state.charge(pick(state, A, 0.0), request(), 0.0)
    Writer(state, A, start_ms=10).say(1.0, reset=True)
    assert pick(state, A, 1.0).load.reserved_requests == 1
    state.finished("r", 2.0)
    assert pick(state, A, 2.0).load.reserved_requests == 0


def test_not_ready_takes_an_endpoint_out_at_once(state: PoolState) -> None:
    a = Writer(state, A)
    a.say(0.0, reset=True)
    a.say(0.02, status=EngineStatus(ready=False, events=True))
    assert [e.id for e in state.ready(0.02)] == [B]
    a.say(0.04)
    assert len(state.ready(0.04)) == 2


def test_who_writes_for_an_engine_without_a_sidecar_speaks_of_its_cache_alone() -> None:
    state = new_state(sidecars=False)
    page = EngineMetrics(report=LoadReport(waiting=7), start_ms=1)
    for endpoint in (A, B):
        state.scraped(endpoint, page, 0.0)
    state.scrape_failed(B, 0.0, refused=True)
    status = EngineStatus(report=LoadReport(waiting=0), ready=False, events=True)
    for endpoint in (A, B):
        Writer(state, endpoint).say(0.1, reset=True, stored=KEYS[:4], status=status)
    assert [one.id for one in state.ready(0.1)] == [A]
    chosen = pick(state, A, 0.1)
    assert chosen.match.source is Source.PRECISE
    assert chosen.load.waiting == 7
    assert {target.endpoint for target in state.scrape_targets(0.1)} == {A, B}
    # Nobody will say that the request is done: it ends by estimate, not with the writer's silence.
    state.charge(chosen, request(), 0.1)
    state.response_headers("r", 200, 0.2)
    state.first_byte("r", 0.3)
    state.scraped(A, page, 0.4)
    state.reset("r", answered=True, now=0.5)
    assert state.reserved() == {}


@pytest.mark.parametrize(
    "change",
    [
        BlockChange(stored=KEYS, reset=True, own_block_tokens=32),
        BlockChange(stored=KEYS, reset=True, scheme=SCHEME + 1),
    ],
)
def test_blocks_of_another_scheme_are_ignored_and_counted(change: BlockChange) -> None:
    state = new_state()
    Writer(state, A).say(0.0, blocks=change)
    assert pick(state, A, 0.0).match.tokens == 0
    assert state.rung(A, 0.0) is Rung.PREDICTED
    assert state.counts["blocks-other-scheme"] == 1


def test_more_blocks_than_the_engine_has_are_not_believed(state: PoolState) -> None:
    a = Writer(state, A)
    small = EngineStatus(
        report=LoadReport(total_blocks=5, block_tokens=128), ready=True, events=True
    )
    a.say(0.0, reset=True, stored=KEYS, status=small)
    assert pick(state, A, 0.0).match.tokens == 640
    a.say(0.1, stored=(1,), status=small)
    assert pick(state, A, 0.1).match.tokens == 0
    assert state.rung(A, 0.1) is Rung.PREDICTED
    assert state.counts["blocks-implausible"] == 1


def test_damaged_records_are_counted_and_change_nothing(state: PoolState) -> None:
    state.apply(b"\xff", 0.0)
    assert state.counts["record-damaged"] == 1


def test_only_members_without_a_fresh_sidecar_are_scraped(state: PoolState) -> None:
    assert [target.endpoint for target in state.scrape_targets(0.0)] == [A, B]
    Writer(state, A).say(0.0, reset=True)
    assert [(target.endpoint, target.url) for target in state.scrape_targets(1.0)] == [
        (B, "http://b/m")
    ]
    assert [target.endpoint for target in state.scrape_targets(2.5)] == [A, B]


def test_a_scraped_page_is_a_load_report_and_for_plain_pods_a_life() -> None:
    state = new_state(sidecars=False)
    page = EngineMetrics(report=LoadReport(waiting=4), start_ms=77)
    state.scraped(A, page, 1.0)
    found = pick(state, A, 1.0)
    assert found.load.waiting == 4
    assert found.incarnation.start_ms == 77
    state.scrape_failed(A, 2.0, refused=False)
    assert len(state.ready(2.0)) == 2
    state.scrape_failed(A, 2.0, refused=True)
    assert [e.id for e in state.ready(2.0)] == [B]
    state.scraped(A, page, 3.0)
    assert len(state.ready(3.0)) == 2
    state.scraped(EndpointId(POOL, "ghost", 1), page, 3.0)


def test_a_page_does_not_tell_the_life_of_an_engine_with_a_sidecar(state: PoolState) -> None:
    state.scraped(A, EngineMetrics(start_ms=77), 1.0)
    assert pick(state, A, 1.0).incarnation.start_ms == 0


def test_a_decision_for_someone_who_left_is_not_charged(state: PoolState) -> None:
    chosen = pick(state, A, 0.0)
    state.replace([], 0.1)
    state.charge(chosen, request(), 0.1)
    assert state.counts["charge-no-member"] == 1
    assert not list(state.candidates(KEYS, block_tokens=64, prompt_tokens=640, now=0.1))


def test_a_decision_beyond_the_limit_is_routed_but_not_charged(state: PoolState) -> None:
    chosen = pick(state, A, 0.0)
    state.charge(chosen, request(), 0.0)
    state.charge(chosen, request(), 0.0)
    assert state.counts["charge-refused"] == 1


def test_charges_are_bounded() -> None:
    state = new_state()
    chosen = pick(state, A, 0.0)
    for number in range(2_500):
        state.charge(chosen, request(f"r{number}", keys=()), 0.0)
        if number % 2:
            state.finished(f"r{number}", 0.0)
    assert len(state._charges) == 1_000


def test_progress_of_unknown_requests_is_harmless(state: PoolState) -> None:
    chosen = pick(state, A, 0.0)
    state.charge(chosen, request(), 0.0)
    charged = pick(state, A, 0.0).load
    state.response_headers("x", 200, 0.0)
    state.first_byte("x", 0.0)
    state.reset("x", answered=True, now=0.0)
    state.reset("x", answered=False, now=0.0)
    state.finished("x", 0.0)
    assert pick(state, A, 0.0).load == charged != chosen.load


def test_blocks_show_only_where_events_are_believed(state: PoolState) -> None:
    a = Writer(state, A)
    assert state.shows(A, KEYS[:3], 0.0) is None, "nobody spoke"
    a.say(0.0, reset=True, stored=KEYS[1:2])
    assert state.shows(A, KEYS[:3], 0.0) is True
    assert state.shows(A, KEYS[4:6], 0.0) is False
    assert state.shows(A, KEYS[:3], 100.0) is None, "its writer fell silent"
    b = Writer(state, B)
    b.say(0.0, reset=True, status=EngineStatus(ready=True, events=False))
    assert state.shows(B, KEYS[:3], 0.0) is None, "it publishes no events"


def test_a_first_token_is_told_once_with_who_serves(state: PoolState) -> None:
    told: list[tuple[str, EndpointId, float]] = []
    state.on_first.append(lambda name, endpoint, now: told.append((name, endpoint, now)))
    state.charge(pick(state, A, 0.0), request(), 0.0)
    state.first_byte("r", 1.0)
    state.first_byte("r", 2.0)
    state.first_byte("unknown", 2.0)
    assert told == [("r", A, 1.0)]


def test_a_prompt_that_another_replica_sent_is_predicted_here_until_it_says_so_no_more() -> None:
    state, other = new_state(), new_state()
    chosen = other.candidates(KEYS, block_tokens=64, prompt_tokens=650, now=0.0)[0]
    other.charge(chosen, request(), 0.0)
    state.elsewhere([own("other", other.reserved(), other.foretold())], 0.0)
    found = state.candidates((*KEYS[:6], 1, 2), block_tokens=64, prompt_tokens=520, now=0.0)
    assert {one.id: one.match.tokens for one in found} == {A: 6 * 64, B: 0}
    assert found[0].match.source is Source.PREDICTED
    assert state.sizes["foretold-blocks"] == len(KEYS)
    state.elsewhere((), 0.0)
    found = state.candidates(KEYS, block_tokens=64, prompt_tokens=650, now=0.0)
    assert [one.match.tokens for one in found] == [0, 0]


def test_what_was_said_long_ago_makes_nobody_fresh() -> None:
    state = new_state(sidecars=True)
    record = encode(
        Record(
            incarnation=Incarnation(A, 1),
            nonce=1,
            seq=1,
            blocks=BlockChange(stored=KEYS, reset=True),
            status=EngineStatus(report=LoadReport(waiting=3), ready=True, events=True),
        )
    )
    state.apply(record, 100.0, behind_s=30.0)
    assert state.rung(A, 100.0) is Rung.PREDICTED
    (status,) = (one for one in state.overview(100.0) if one.member.id == A)
    assert (status.record_age_s, status.endpoint.load.age_s) == (30.0, 30.0)


def test_an_engine_of_which_some_was_missed_is_not_precise_though_what_is_told_counts() -> None:
    state = new_state(sidecars=True)
    writer = Writer(state, A)
    partial = EngineStatus(ready=True, events=True, partial=True)
    writer.say(0.0, reset=True, stored=KEYS[:4], status=partial)
    assert state.rung(A, 0.0) is Rung.PREDICTED
    found = state.candidates(KEYS, block_tokens=64, prompt_tokens=10_000, now=0.0)
    (match,) = (one.match for one in found if one.id == A)
    assert (match.tokens, match.source) == (256, Source.PRECISE)
    writer.say(0.1)
    assert state.rung(A, 0.1) is Rung.PRECISE


def test_a_snapshot_that_ends_before_the_gap_is_not_read_again_at_once() -> None:
    state = new_state(sidecars=True)
    Writer(state, A).say(0.0, reset=True)
    asked = 0
    for step in range(1, 500):
        now = step / 100
        Writer(state, A).say(now, seq=1000 + 2 * step)
        snapshot = BlockChange(reset=True)
        writer = Writer(state, A)
        writer.say(now, seq=999 + 2 * step, blocks=snapshot, part=Part(0, 1))
        Writer(state, A).say(now, seq=1001 + 2 * step)
        asked += len(state.lost(now))
    assert 1 <= asked <= 4


def test_on_an_engine_that_tells_its_size_no_more_is_predicted_than_fits() -> None:
    state = new_state(sidecars=False)
    small = LoadReport(waiting=0, running=0, kv_usage=0.0, total_blocks=20, block_tokens=16)
    state.scraped(A, EngineMetrics(report=small), 0.0)
    for name, keys in (("r", KEYS[:4]), ("s", KEYS[6:])):
        found = state.candidates(keys, block_tokens=64, prompt_tokens=300, now=0.0)
        state.charge(next(one for one in found if one.id == A), request(name, keys), 0.0)
    assert state.sizes["predicted-blocks"] == 5


@pytest.mark.parametrize(("streaming", "learnt"), [(True, 1_000.0), (False, PRIOR)])
def test_an_answer_that_comes_whole_says_nothing_of_prefills(
    streaming: bool, learnt: float
) -> None:
    state = new_state()
    for number in range(5):
        now = 10.0 * number
        keys = tuple(range(1_000 * number, 1_000 * number + 10))
        state.charge(pick(state, A, now, keys), request(str(number), keys), now)
        state.response_headers(str(number), 200, now + 0.1, streaming=streaming)
        state.first_byte(str(number), now + 0.650)
        state.finished(str(number), now + 0.7)
    assert pick(state, A, 60.0).speeds.prefill_tokens_per_s == pytest.approx(learnt, rel=0.01)


def test_a_prompt_that_was_loaded_says_nothing_of_how_fast_prompts_are_computed() -> None:
    state = new_state()
    writer = Writer(state, A)
    tiers = (TierChange("CPU", KEYS),)
    writer.say(0.0, blocks=BlockChange(reset=True, tiers=tiers))
    for number in range(5):
        writer.say(10.0 * number)
        now = 10.0 * number
        chosen = pick(state, A, now)
        assert dict(chosen.match.loaded) == {"CPU": 64 * len(KEYS)}
        state.charge(chosen, request(str(number)), now)
        state.first_byte(str(number), now + 5.0)
        state.finished(str(number), now + 6.0)
    assert pick(state, A, 60.0).speeds.prefill_tokens_per_s == PRIOR
