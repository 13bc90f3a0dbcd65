"""A request that a gateway sends again in another stream: one deadline, one charge, another try."""

import gc

from epp import protocol
from epp.errors import NoEndpoint
from epp.framework import EndpointId, PoolId
from epp.request.attempts import KEPT_S, MAX_ID, Attempt, Attempts
from epp.request.flight import Flight
from epp.request.hints import Hints
from tests.fakes.desk import ask, open_desk, post
from tests.fakes.retries import TOKENS, first_token_ms, named, sent

X = EndpointId(PoolId("pool"), "x", 8000)
Y = EndpointId(PoolId("pool"), "y", 8000)


def release_nothing() -> None: ...


async def test_an_error_whose_end_nobody_saw_is_given_back_as_well() -> None:
    async with open_desk(2) as desk:
        first = await sent(desk)
        first.progress.response_headers(503, None)
        first.progress.reset(answered=True)
        assert desk.reserved() == 1, "an answer may run on"
        second = await sent(desk)
        loads = {e.address: e.load.reserved_requests for e in desk.pool.ready(desk.now)}
        assert loads == {first.destination: 0, second.destination: 1}


async def test_an_overloaded_engine_has_failed_a_wrong_request_has_not() -> None:
    async with open_desk(2) as desk:
        for status, others in ((429, 1), (500, 1), (400, 0), (404, 0)):
            route = await sent(desk, f"for {status}")
            route.progress.response_headers(status, None)
            route.progress.finished()
            await sent(desk, f"for {status}")
            assert desk.witness.last.left_out.get("failed before", 0) == others, status


async def test_all_of_the_list_up_to_who_served_has_failed() -> None:
    attempts = Attempts()
    async with open_desk(4) as desk:
        chosen = [member.id for member in desk.members]
    first = attempts.begin(post(headers=named("one")), 0.0)
    first.routed(chosen[0], release_nothing)
    first.answered(503, chosen[:2], 0.1)
    first.over(0.1)
    assert attempts.begin(post(headers=named("one")), 0.2).failed == tuple(chosen[:2])


async def test_a_flight_says_how_far_the_gateway_went_down_the_list() -> None:
    from epp.request.director import PickSettings

    async with open_desk(4, settings=PickSettings(destinations=3)) as desk:
        route = await sent(desk)
        listed = route.destination.split(",")
        route.progress.response_headers(503, listed[1])
        route.progress.finished()
        again = (await sent(desk)).destination.split(",")
        assert not set(again) & set(listed[:2])
        assert listed[2] in again


async def test_a_stranger_that_served_and_failed_is_left_out_too() -> None:
    async with open_desk(4) as desk:
        route = await sent(desk)
        other = next(m.address for m in desk.members if m.address != route.destination)
        route.progress.response_headers(503, other)
        route.progress.finished()
        assert (await sent(desk)).destination not in {route.destination, other}


async def test_an_answer_that_began_ends_the_memory_of_its_request() -> None:
    limit = {"x-llm-d-slo-ttft-ms": "500"}
    async with open_desk(3) as desk:
        running = await sent(desk, **limit)
        running.progress.response_headers(200, None, streaming=True)
        desk.now += 1.0
        await sent(desk, **limit)
        assert first_token_ms(desk) == 500
        assert desk.reserved() == 2, "the first is still being answered"
        assert desk.witness.decisions[-1][1].attempt == 1


async def test_requests_without_an_id_and_with_too_long_ones_stand_for_themselves() -> None:
    async with open_desk(3) as desk:
        for name in ("", "x" * (MAX_ID + 1)):
            await sent(desk, name)
            await sent(desk, name)
            assert desk.witness.decisions[-1][1].attempt == 1
        await sent(desk, "x" * MAX_ID)
        await sent(desk, "x" * MAX_ID)
        assert desk.witness.decisions[-1][1].attempt == 2


async def test_a_refused_attempt_keeps_the_time_and_blames_nobody() -> None:
    limit = {"x-llm-d-slo-ttft-ms": "500"}
    async with open_desk(1) as desk:
        (member,) = desk.members
        desk.pool.endpoints.set_ready(member.id, False, desk.now)
        assert isinstance(await desk.decide(ask(TOKENS), headers=named("one", **limit)), NoEndpoint)
        desk.pool.endpoints.set_ready(member.id, True, desk.now)
        desk.now += 0.1
        await sent(desk, **limit)
        assert first_token_ms(desk) == 400
        assert desk.witness.decisions[-1][1].failed_at == ()


async def test_an_attempt_that_is_still_being_decided_is_given_back_once_it_is_charged() -> None:
    attempts = Attempts()
    given_back: list[str] = []
    slow = attempts.begin(post(headers=named("one")), 0.0)
    again = attempts.begin(post(headers=named("one")), 0.1)
    slow.routed(X, lambda: given_back.append("slow"))
    again.routed(Y, lambda: given_back.append("again"))
    assert given_back == ["slow"]
    assert again.number == 2


def test_a_stream_that_ends_without_an_answer_was_failed_by_whom_it_was_sent_to() -> None:
    attempts = Attempts()
    with attempts.begin(post(headers=named("one")), 0.0) as first:
        first.routed(X, release_nothing)
    first.over(0.5, unanswered=True)
    first.over(0.6, unanswered=True)
    with attempts.begin(post(headers=named("one")), 0.7) as second:
        assert second.failed == (X,)
        second.routed(X, release_nothing)
    second.answered(500, [X, Y], 0.8)
    second.over(0.8)
    assert attempts.begin(post(headers=named("one")), 0.9).failed == (X, Y)


def test_whoever_has_not_answered_when_it_comes_again_has_failed_it() -> None:
    attempts = Attempts()
    with attempts.begin(post(headers=named("one")), 0.0) as first:
        first.routed(X, release_nothing)
    assert attempts.begin(post(headers=named("one")), 0.5).failed == (X,)
    answered = attempts.begin(post(headers=named("two")), 1.0)
    answered.routed(X, release_nothing)
    answered.answered(503, [Y], 1.1)
    answered.over(1.1)
    assert attempts.begin(post(headers=named("two")), 1.2).failed == (Y,)


def test_the_client_s_own_leaving_in_mid_answer_fails_nobody() -> None:
    attempts = Attempts()
    first = attempts.begin(post(headers=named("one")), 0.0)
    first.routed(X, release_nothing)
    first.answered(200, [X], 0.1)
    first.over(0.5)
    second = attempts.begin(post(headers=named("one")), 0.6)
    assert (second.number, second.failed) == (1, ())


def test_a_request_is_forgotten_a_while_after_its_last_attempt_and_not_before() -> None:
    attempts = Attempts()
    said = Hints(slo_ttft_s=100.0)
    first = attempts.begin(post(headers=named("one")), 0.0)
    first.routed(X, release_nothing)
    late = attempts.begin(post(headers=named("one")), 50.0)
    assert late.remaining(said).slo_ttft_s == 50.0, "its first attempt is under way all the time"
    late.routed(Y, release_nothing)
    late.over(60.0, unanswered=True)
    third = attempts.begin(post(headers=named("one")), 60.0 + KEPT_S)
    assert (third.number, third.since_first_s) == (3, 60.0 + KEPT_S)
    third.over(100.0)
    fourth = attempts.begin(post(headers=named("one")), 100.1 + KEPT_S)
    assert (fourth.number, fourth.remaining(said)) == (1, said)
    fourth.over(200.0)
    attempts.begin(post(headers=named("two")), 201.0 + KEPT_S).over(300.0)
    assert len(attempts) == 1


def test_memory_has_a_limit_and_the_oldest_goes_first() -> None:
    attempts = Attempts(limit=3)
    for number in range(4):
        attempts.begin(post(headers=named(str(number))), float(number))
    assert (len(attempts), attempts.forgotten) == (3, 1)
    assert attempts.begin(post(headers=named("1")), 9.0).number == 2
    assert attempts.begin(post(headers=named("0")), 9.0).number == 1
    assert (len(attempts), attempts.forgotten) == (3, 2)


async def test_a_gateway_s_timeout_shortens_the_decision_and_is_told() -> None:
    async with open_desk(2) as desk:
        told = await sent(desk, **{"x-envoy-expected-rq-timeout-ms": "2000"})
        assert desk.witness.decisions[-1][1].timeout_s == 2.0
        assert dict(told.set_headers)[protocol.TIMEOUT_LEFT_MS] == "2000"
        odd = await sent(desk, "odd", **{"x-envoy-expected-rq-timeout-ms": "soon"})
        assert protocol.TIMEOUT_LEFT_MS not in dict(odd.set_headers)
        assert desk.witness.ignored_headers == ["timeout"]
        assert desk.witness.decisions[-1][1].timeout_s is None


async def test_tokens_are_awaited_for_a_quarter_of_a_short_timeout_at_most() -> None:
    asked: list[float] = []

    async def patient(*_: object, wait_s: float, **__: object) -> None:
        asked.append(wait_s)

    async with open_desk(2) as desk:
        desk.tokens.resolve = patient  # type: ignore[method-assign,assignment]
        for timeout_ms in ("100", "8000"):
            await sent(desk, timeout_ms, **{"x-envoy-expected-rq-timeout-ms": timeout_ms})
    assert asked == [0.025, 0.1]


async def test_an_answered_request_leaves_nothing_to_the_garbage_collector() -> None:
    async with open_desk(2) as desk:
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for name in ("", "one"):
                route = await sent(desk, name)
                route.progress.response_headers(200, None)
                route.progress.finished()
            del route
            gc.collect()
            left = [one for one in gc.garbage if isinstance(one, (Flight, Attempt))]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
        assert left == []


async def test_asking_what_would_happen_is_no_attempt() -> None:
    async with open_desk(2) as desk:
        await desk.director.preview(post(ask(TOKENS), headers=named("one")))
        await sent(desk)
        await desk.director.preview(post(ask(TOKENS), headers=named("one")))
        assert desk.witness.decisions[-1][1].attempt == 1
        assert desk.reserved() == 1
