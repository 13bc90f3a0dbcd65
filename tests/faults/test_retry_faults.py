"""Fault F10: what a gateway sends again is one request, by one id and one content."""

import pytest

from epp.request.attempts import MAX_ATTEMPTS
from epp.request.plan.entries import Options
from epp.request.plan.live import build
from epp.request.plan.resolve import resolve
from tests.fakes.desk import ask, open_desk
from tests.fakes.retries import TOKENS, ended, first_token_ms, named, sent

SESSIONS = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
  - type: session-affinity-scorer
    parameters: {strategy: session_id}
  - type: queue-scorer
schedulingProfiles:
  - name: default
    plugins:
      - {pluginRef: session-affinity-scorer, weight: 1}
      - {pluginRef: queue-scorer, weight: 2}
"""


async def test_F10_a_second_stream_has_what_is_left_of_the_time_to_the_first_token() -> None:
    """Protected by `Attempt.remaining`. Red when each stream gets the whole limit."""
    limit = {"x-llm-d-slo-ttft-ms": "500", "x-llm-d-slo-tpot-ms": "40"}
    async with open_desk(3) as desk:
        await sent(desk, **limit)
        desk.now += 0.2
        await sent(desk, **limit)
        assert first_token_ms(desk) == 300
        decision, request, _ = desk.witness.decisions[-1]
        assert request.slo_tpot_s == 0.04
        assert request.attempt == 2
        assert "attempt 2, 0.200 s after the first" in decision.reasons
        desk.now += 0.4
        await sent(desk, **limit)
        assert first_token_ms(desk) == 0
        await sent(desk, "another", **limit)
        assert first_token_ms(desk) == 500


async def test_F10_the_earlier_attempt_gives_back_its_charge_and_hears_no_more() -> None:
    """Protected by `Attempt.supersede`. Red when both attempts are charged."""
    async with open_desk(3) as desk:
        first = await sent(desk)
        second = await sent(desk)
        assert first.destination != second.destination
        loads = {e.address: e.load.reserved_requests for e in desk.pool.ready(desk.now)}
        assert loads[first.destination] == 0
        assert loads[second.destination] == 1
        first.progress.response_headers(503, first.destination)
        first.progress.finished()
        assert desk.reserved() == 1
        second.progress.response_headers(200, second.destination)
        second.progress.finished()
        assert desk.reserved() == 0


async def test_F10_whoever_failed_is_left_out_as_long_as_there_are_others() -> None:
    """Protected by `filters.eligible`. Red when the same endpoint fails a request again."""
    async with open_desk(3) as desk:
        seen: list[str] = []
        for _ in range(3):
            route = await sent(desk)
            seen.append(route.destination)
            route.progress.response_headers(503, route.destination)
            route.progress.finished()
        assert len(set(seen)) == 3
        assert desk.witness.last.left_out == {"failed before": 2}
        fourth = await sent(desk)
        assert fourth.destination in seen, "somebody is better than nobody"
        assert desk.witness.last.left_out == {}


@pytest.mark.parametrize("other", ["body", "path"])
async def test_F10_the_same_id_with_another_request_is_no_further_attempt(other: str) -> None:
    """Protected by the digest in `Attempts.begin`. Red when an id alone makes a retry."""
    async with open_desk(3) as desk:
        await sent(desk)
        body = ask(list(range(1, 641))) if other == "body" else ask(TOKENS)
        path = "/v1/completions?again" if other == "path" else "/v1/completions"
        await desk.route(body, path=path, headers=named("one"))
        assert desk.witness.decisions[-1][1].attempt == 1
        assert desk.reserved() == 2


async def test_F10_nobody_takes_more_than_a_few_requests_off_the_books() -> None:
    """Protected by MAX_ATTEMPTS. Red when an id said again takes all its load away."""
    async with open_desk(3) as desk:
        for _ in range(100):
            await sent(desk)
        assert desk.reserved() == 100 - (MAX_ATTEMPTS - 1)


async def test_F10_a_session_stays_where_it_was_unless_that_is_who_failed() -> None:
    """Protected by `Request.failed_at` in `Choice`. Red when a session is sent to who failed it."""
    built = build(resolve(SESSIONS.encode(), "here", Options(allow_experimental=True)))
    session = {"x-session-id": "a chat"}
    async with open_desk(3, built=built) as desk:
        home = ended(await sent(desk, "first", **session), 200)

        # Home is crowded, so that others are asked, the second of them with success.
        desk.report([9 * (member.address == home) for member in desk.members])
        away = ended(await sent(desk, "second", **session), 503)
        again = ended(await sent(desk, "second", **session), 200)
        assert len({home, away, again}) == 3
        desk.report([0, 0, 0])
        assert ended(await sent(desk, "third", **session), 200) == home

        # Home itself fails: the session moves, and stays where it was answered.
        assert ended(await sent(desk, "fourth", **session), 503) == home
        moved = ended(await sent(desk, "fourth", **session), 200)
        assert moved != home
        assert ended(await sent(desk, "fifth", **session), 200) == moved
