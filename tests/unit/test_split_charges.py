"""What a split request charges, where, and until when."""

from dataclasses import replace

import pytest

from epp.framework import Endpoint, EndpointId, PoolId, Request, Role, Source
from epp.state.charges import Charges
from epp.state.endpoints import Endpoints, Member
from epp.state.load import LoadBook, LoadRules
from epp.state.pool import PoolState
from epp.state.prefix.index import PrefixIndex
from epp.state.prefix.predicted import PredictedIndex
from epp.state.records import (
    BlockChange,
    Done,
    EngineStatus,
    FirstToken,
    Incarnation,
    Outcome,
    Record,
    encode,
)

POOL = PoolId("p")
D, P = EndpointId(POOL, "d", 1), EndpointId(POOL, "p", 1)
KEYS = tuple(range(100, 110))
ASKED = Request(
    id="r",
    api="completions",
    path="/v1/completions",
    prompt_tokens=650,
    output_tokens=64,
    keys=KEYS,
    exact=True,
    whole="",
)


def new_state(**load: float) -> PoolState:
    state = PoolState(
        POOL,
        Endpoints(),
        PrefixIndex(10_000),
        PredictedIndex(10_000, 300.0),
        LoadBook(LoadRules(**load)),  # type: ignore[arg-type]
        charges=Charges(limit=100),
    )
    state.replace(
        [
            Member(id=D, address="10.0.0.1:1", role=Role.DECODE),
            Member(id=P, address="10.0.0.2:1", role=Role.PREFILL),
        ],
        0.0,
    )
    return state


@pytest.fixture
def state() -> PoolState:
    return new_state()


def say(state: PoolState, who: EndpointId, now: float, *, seq: int, start_ms: int = 1, **fields):
    status = EngineStatus(ready=True, events=True)
    life = Incarnation(who, start_ms)
    record = Record(incarnation=life, nonce=1, seq=seq, status=status, **fields)
    state.apply(encode(record), now)


def pick(state: PoolState, who: EndpointId, now: float = 0.0) -> Endpoint:
    found = state.candidates(KEYS, block_tokens=64, prompt_tokens=650, now=now)
    return next(endpoint for endpoint in found if endpoint.id == who)


def split(state: PoolState, now: float = 0.0, request: Request = ASKED) -> None:
    state.charge(pick(state, D, now), request, now, prefill=pick(state, P, now))


def requests(state: PoolState, now: float = 0.0) -> tuple[int, int]:
    """Of the decode pod and of the prefill pod."""
    return (
        pick(state, D, now).load.reserved_requests,
        pick(state, P, now).load.reserved_requests,
    )


def test_the_prompt_is_the_load_of_one_and_the_answer_that_of_the_other(state: PoolState) -> None:
    split(state)
    decode, prefill = pick(state, D).load, pick(state, P).load
    assert (decode.reserved_requests, decode.reserved_pending) == (1, 1)
    assert (decode.reserved_prefill_tokens, decode.reserved_decode_blocks) == (0, 45)
    assert (prefill.reserved_requests, prefill.reserved_pending) == (1, 1)
    assert (prefill.reserved_prefill_tokens, prefill.reserved_decode_blocks) == (650, 0)


def test_each_is_charged_for_what_it_does_not_hold(state: PoolState) -> None:
    blocks = BlockChange(stored=KEYS[:5], reset=True)
    say(state, P, 0.0, seq=1, blocks=blocks)
    say(state, D, 0.0, seq=1, blocks=BlockChange(stored=KEYS[:2], reset=True))
    split(state)
    assert pick(state, P).load.reserved_prefill_tokens == 650 - 320
    decode = pick(state, D).load
    assert decode.reserved_prefill_tokens == 0
    assert decode.reserved_decode_blocks == -(-(650 - 128 + 64) // 16)


def test_the_prompt_is_predicted_where_it_is_computed_and_then_where_it_is_answered(
    state: PoolState,
) -> None:
    split(state)
    assert pick(state, D).match.tokens == 0  # an equal prompt must not count on it yet
    for now in (0.0, 1.0):
        match = pick(state, P, now).match
        assert (match.tokens, match.source) == (640, Source.PREDICTED)
        state.response_headers("r", 200, 1.0)
    match = pick(state, D, 1.0).match
    assert (match.tokens, match.source) == (640, Source.PREDICTED)


def test_keys_that_wait_for_a_prefill_are_bounded() -> None:
    charges = Charges(limit=100, max_keys=25)
    state = new_state()
    state._charging.charges = charges
    for name in "abc":
        split(state, request=replace(ASKED, id=name))
    assert charges._keys == 20
    for name in "abc":
        state.response_headers(name, 200, 1.0)
        state.finished(name, 1.0)
    assert charges._keys == 0
    split(state, request=replace(ASKED, id="d"))
    state.reset("d", answered=False, now=1.0)
    assert charges._keys == 0
    for number in range(250):
        split(state, request=replace(ASKED, id=str(number), keys=KEYS[:1]))
    assert (len(charges), charges._keys) == (100, 25)


def first_token(state: PoolState) -> None:
    say(state, D, 1.0, seq=1, first_tokens=(FirstToken("r"),))


def done(state: PoolState) -> None:
    say(state, D, 1.0, seq=1, done=(Done(decision_id="r", outcome=Outcome.OK, status=200),))


def failed(state: PoolState) -> None:
    over = Done(decision_id="r", outcome=Outcome.ENGINE_GONE, status=502)
    say(state, D, 1.0, seq=1, done=(over,))


ENDS = {
    "first_token": (first_token, (1, 0), True),
    "first_byte": (lambda state: state.first_byte("r", 1.0), (1, 0), True),
    "headers": (lambda state: state.response_headers("r", 200, 1.0), (1, 0), True),
    "failed headers": (lambda state: state.response_headers("r", 502, 1.0), (1, 0), False),
    "reset": (lambda state: state.reset("r", answered=False, now=1.0), (0, 0), False),
    "left": (lambda state: state.reset("r", answered=True, now=1.0), (1, 0), True),
    "finished": (lambda state: state.finished("r", 1.0), (0, 0), True),
    "done": (done, (0, 0), True),
    "failed": (failed, (0, 0), False),
}


@pytest.mark.parametrize("end", ENDS)
def test_the_first_sign_ends_the_prefill_and_the_second_changes_nothing(end: str) -> None:
    state = new_state()
    split(state)
    act, left, kept = ENDS[end]
    act(state)
    assert requests(state, 1.0) == left
    assert pick(state, P, 1.0).load.reserved_prefill_tokens == 0
    assert bool(pick(state, P, 1.0).match.tokens) == kept
    assert bool(pick(state, D, 1.0).match.tokens) == kept
    for again, *_ in ENDS.values():
        again(state)
    assert requests(state, 1.0)[1] == 0
    state.tick(1.0)
    assert pick(state, P, 1.0).load.reserved_prefill_tokens == 0


def test_only_the_decode_pods_sidecar_can_end_the_prefill(state: PoolState) -> None:
    split(state)
    for name in ("r", "r/prefill"):
        over = Done(decision_id=name, outcome=Outcome.OK, status=200)
        say(state, P, 0.5, seq=1, first_tokens=(FirstToken(name),), done=(over,))
    assert requests(state, 0.5) == (1, 1)
    say(state, D, 0.6, seq=1, first_tokens=(FirstToken("r/prefill"),))
    assert requests(state, 0.6) == (1, 1)


def test_a_prefill_is_bound_to_the_life_of_its_engine(state: PoolState) -> None:
    say(state, P, 0.0, seq=1, start_ms=10)
    split(state)
    say(state, P, 1.0, seq=1, start_ms=20)
    assert requests(state, 1.0) == (1, 0)
    split(state, 1.0, Request(id="r2", api="completions", path="/", prompt_tokens=100, whole=""))
    state.response_headers("r", 200, 1.1)
    state.finished("r", 1.2)
    assert requests(state, 1.2) == (1, 1)
    assert pick(state, P, 1.2).load.reserved_prefill_tokens == 100


def test_a_decode_engine_that_restarts_ends_its_prefills(state: PoolState) -> None:
    say(state, D, 0.0, seq=1, start_ms=10)
    split(state)
    say(state, D, 1.0, seq=1, start_ms=20)
    state.tick(1.1)
    assert requests(state, 1.1) == (0, 0)
    assert pick(state, P, 1.1).match.tokens == 0


def test_a_hung_prefill_is_load_as_long_as_its_stream_lives(state: PoolState) -> None:
    split(state)
    for second in range(1, 1200):
        state.tick(float(second))
    assert requests(state, 1200.0) == (1, 1)


def test_members_that_left_are_not_charged_and_hold_up_nobody(state: PoolState) -> None:
    decode, prefill = pick(state, D), pick(state, P)
    state.replace([Member(id=D, address="10.0.0.1:1", role=Role.DECODE)], 0.1)
    state.charge(decode, ASKED, 0.1, prefill=prefill)
    assert state.counts["charge-no-member"] == 1
    assert pick(state, D, 0.1).load.reserved_requests == 1
    state.response_headers("r", 200, 0.2)
    state.finished("r", 0.3)
    assert pick(state, D, 0.3).load.reserved_requests == 0


def test_the_limit_of_reservations_holds_for_both_halves() -> None:
    state = new_state(max_reservations=3)
    for number in range(3):
        split(state, request=Request(id=str(number), api="c", path="/", prompt_tokens=9))
    assert requests(state) == (2, 1)
    assert state.counts["charge-refused"] == 2
    for number in range(3):
        state.finished(str(number), 1.0)
    assert requests(state, 1.0) == (0, 0)


def test_a_prediction_where_events_are_seen_ends_with_the_prefill_pods_next_batch(
    state: PoolState,
) -> None:
    say(state, P, 0.0, seq=1, blocks=BlockChange(reset=True))
    split(state)
    say(state, P, 0.5, seq=2, blocks=BlockChange(stored=(7,)))
    assert pick(state, P, 0.5).match.tokens == 640
    state.response_headers("r", 200, 1.0)
    say(state, P, 1.1, seq=3, blocks=BlockChange(stored=KEYS[:4]))
    match = pick(state, P, 1.1).match
    assert (match.tokens, match.source) == (256, Source.PRECISE)
    assert pick(state, D, 1.1).match.tokens == 640  # nobody tells of its blocks


def test_a_prefill_elsewhere_says_nothing_about_speed_or_trust(state: PoolState) -> None:
    say(state, D, 0.0, seq=1)
    other = Request(id="o", api="c", path="/", prompt_tokens=5000, keys=KEYS)
    state.charge(pick(state, D), other, 0.0)
    split(state, 0.1)
    before = pick(state, D, 0.1).match.trust
    over = Done(decision_id="r", outcome=Outcome.OK, status=200, cached_tokens=0)
    say(state, D, 9.0, seq=2, first_tokens=(FirstToken("r"),), done=(over,))
    life = state.endpoints.incarnation(D)
    assert life is not None
    assert state._load.prefill_tokens_per_s(life) == state._load.rules.prefill_tokens_per_s
    assert pick(state, D, 9.0).match.trust == before


def test_the_prediction_that_is_reported_is_that_of_the_prefill_pod(state: PoolState) -> None:
    say(state, P, 0.0, seq=1, blocks=BlockChange(stored=KEYS[:3], reset=True))
    told: list[tuple[str, int]] = []
    state.on_done.append(lambda _, endpoint, tokens: told.append((endpoint.id.name, tokens)))
    split(state)
    done(state)
    assert told == [("d", 192)]


OTHER = EndpointId(POOL, "other", 1)


def with_another(state: PoolState, *, has_sidecar: bool) -> Endpoint:
    """One more endpoint that decodes, which the gateway lets serve in place of the chosen one."""
    members = [
        Member(id=D, address="10.0.0.1:1", role=Role.DECODE),
        Member(id=P, address="10.0.0.2:1", role=Role.PREFILL),
        Member(id=OTHER, address="10.0.0.3:1", has_sidecar=has_sidecar),
    ]
    state.replace(members, 0.0)
    return pick(state, OTHER)


def test_a_split_request_that_fails_over_keeps_its_prefill(state: PoolState) -> None:
    other = with_another(state, has_sidecar=True)
    split(state)
    state.served_by(ASKED, other.address, [pick(state, D), other], 0.5)
    load = pick(state, OTHER, 0.6).load
    assert (load.reserved_requests, load.reserved_prefill_tokens) == (1, 0)
    assert requests(state, 0.6) == (0, 1)
    state.response_headers("r", 200, 1.0)
    assert requests(state, 1.0) == (0, 0)
    assert pick(state, OTHER, 1.0).match.tokens == 640
    assert pick(state, D, 1.0).match.tokens == 0
    state.finished("r", 2.0)
    assert pick(state, OTHER, 2.0).load.reserved_requests == 0


def test_an_endpoint_without_a_sidecar_computes_the_prompt_itself(state: PoolState) -> None:
    other = with_another(state, has_sidecar=False)
    split(state)
    state.served_by(ASKED, other.address, [pick(state, D), other], 0.5)
    load = pick(state, OTHER, 0.6).load
    assert (load.reserved_requests, load.reserved_prefill_tokens) == (1, 650)
    assert requests(state, 0.6) == (0, 0)
    assert pick(state, P, 0.6).match.tokens == 0
    assert pick(state, OTHER, 0.6).match.tokens == 640
    state.finished("r", 2.0)
    assert pick(state, OTHER, 2.0).load.reserved_requests == 0
