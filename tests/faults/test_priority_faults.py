"""Field faults of priorities: who is refused when a pool is full, and who never is."""

import json
from collections import Counter

import pytest

from epp import protocol
from epp.errors import NoEndpoint, Saturated
from epp.framework.fullness import FULL_QUEUE
from epp.request.exchange import Route
from tests.fakes import extproc_messages as envoy
from tests.fakes.declarations import declared
from tests.fakes.desk import ask, open_desk

OBJECTIVE = protocol.OBJECTIVE[0]
BATCH = {OBJECTIVE: "batch"}
PATH = {":path": "/v1/completions", ":method": "POST"}


@pytest.mark.parametrize("nobody", ["no members", "none ready", "none allowed"])
async def test_B01_an_empty_pool_is_503_for_requests_that_may_be_shed_too(nobody: str) -> None:
    """Protected by `shed`, which has NoEndpoint raised before it measures. Red when an empty pool
    counts as a full one: clients would try again against nothing."""
    async with open_desk() as desk:
        desk.objectives.swap(declared({"batch": -1}))
        if nobody == "no members":
            desk.pool.replace([], desk.now)
        elif nobody == "none ready":
            for member in desk.members:
                desk.pool.endpoints.set_ready(member.id, False, desk.now)
        subset = () if nobody == "none allowed" else None
        outcome = await desk.decide(ask(), headers=BATCH, subset=subset)
        assert isinstance(outcome, NoEndpoint)
        assert (outcome.status, outcome.reason) == (503, "rejected-no-endpoints")


async def test_B01_a_full_pool_is_429_and_says_when_to_come_again() -> None:
    """Protected by `fullness.FULL`. Red when a full pool sheds nobody, or with another status."""
    async with open_desk() as desk:
        desk.objectives.swap(declared({"batch": -1}))
        desk.report([FULL_QUEUE] * 4)
        stream = envoy.a_stream()
        stream.receive(envoy.request_headers({**PATH, **BATCH}))
        arrival = envoy.arrival_in(
            stream.receive(envoy.request_body(json.dumps(ask()).encode(), end=True))
        )
        told, _ = stream.decided(await desk.director.decide(arrival))
        (reply,) = envoy.sent([told])
        assert [refusal.reason for refusal in desk.witness.refusals] == ["rejected-saturated"]
    answer = reply.immediate_response
    assert answer.status.code == 429
    headers = envoy.set_in(answer.headers)
    assert headers[protocol.DROP_REASON] == "rejected-saturated"
    assert int(headers["retry-after"]) > 0
    message = json.loads(answer.body)["error"]["message"]
    assert message.endswith("ResourceExhausted - system saturated, sheddable request dropped")


async def test_G06_at_saturation_sheddable_requests_are_refused_and_others_served() -> None:
    """Protected by `if priority < 0` in `shed`. Red when others are shed, or nobody is.

    Four endpoints answer 16 requests between two reports. 32 come, half of them sheddable: twice
    as many as there is room for. The others alone keep the pool busy; queues stay bounded, and
    when the others are gone nobody is refused any more.
    """
    async with open_desk() as desk:
        desk.objectives.swap(declared({"batch": -1, "gold": 5}))
        queues: dict[str, list[Route]] = {member.address: [] for member in desk.members}

        async def between_reports(names: list[str]) -> Counter[tuple[str, bool]]:
            """Who was served; then the endpoints answer."""
            seen: Counter[tuple[str, bool]] = Counter()
            desk.now += 1.0
            desk.report([len(queue) for queue in queues.values()])
            for name in names:
                outcome = await desk.decide(ask(), headers={OBJECTIVE: name})
                seen[name, isinstance(outcome, Route)] += 1
                if isinstance(outcome, Route) and outcome.destination:
                    queues[outcome.destination].append(outcome)
            for queue in queues.values():
                for route in queue[:4]:
                    route.progress.finished()
                del queue[:4]
            return seen

        seen: Counter[tuple[str, bool]] = Counter()
        longest = 0
        for _ in range(60):
            seen += await between_reports(["batch", "gold", "batch", "no-such-objective"] * 8)
            longest = max(longest, *map(len, queues.values()))
        assert seen["gold", True] == seen["no-such-objective", True] == 60 * 8
        assert seen["batch", False] > 800
        assert longest <= 3 * FULL_QUEUE
        for _ in range(4):
            await between_reports([])
        assert (await between_reports(["batch"] * 8)) == {("batch", True): 8}


async def test_G06_nothing_is_shed_below_saturation() -> None:
    """Protected by the limit in `shed`. Red when any load is enough, or any unknown number."""
    async with open_desk() as desk:
        desk.objectives.swap(declared({"batch": -(2**31)}))
        for waiting in ([FULL_QUEUE - 1] * 4, [0, 0, 0, 4 * FULL_QUEUE - 1]):
            desk.report(waiting)
            await desk.route(ask(), headers=BATCH)
        desk.now += 100.0  # reports are stale: nobody knows, and only who may be shed is refused
        await desk.route(ask())
        assert isinstance(await desk.decide(ask(), headers=BATCH), Saturated)
