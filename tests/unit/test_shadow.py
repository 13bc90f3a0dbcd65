"""Mode `shadow`: all is decided and counted, and the gateway hears nothing of it."""

import pytest

from epp import protocol
from epp.bodies.usage import Usage
from epp.errors import BadRequest, NoEndpoint, Saturated
from epp.framework import Role
from epp.request import shadow
from epp.request.director import PickSettings
from tests.fakes.declarations import declared
from tests.fakes.desk import Desk, ask, open_desk, post
from tests.fakes.watched import watched

TOKENS = list(range(640))
OBJECTIVE = protocol.OBJECTIVE[0]


def loads(desk: Desk) -> dict[str, int]:
    return {one.address: one.load.reserved_requests for one in desk.pool.ready(desk.now)}


async def test_a_request_is_decided_and_nobody_is_named() -> None:
    async with open_desk(settings=PickSettings(destinations=2, emit_scores=True)) as desk:
        desk.report([5, 0, 5, 5])
        normal = await desk.route(ask(TOKENS))
        desk.switch.switch("shadow")
        route = await desk.route(ask(TOKENS))
        before, after = (decision for decision, *_ in desk.witness.decisions)
    assert normal.destination is not None
    assert route.destination is None
    assert route.set_headers == ((protocol.DECISION_ID, after.request_id),)
    assert after.reasons[0] == shadow.REASON
    assert after.chosen[0].address == before.chosen[0].address == "10.0.0.1:8000"
    assert after.rung == before.rung
    assert route.scores


async def test_a_split_is_shown_but_nobody_prefills() -> None:
    roles = [Role.DECODE, Role.PREFILL]
    async with open_desk(roles=roles, split="always") as desk:
        desk.switch.switch("shadow")
        route = await desk.route(ask("long " * 4000))
        assert desk.witness.last.split in {"split", "tokens-estimated"}
        assert protocol.PREFILLER not in dict(route.set_headers)
        assert loads(desk) == {"10.0.0.0:8000": 1, "10.0.0.1:8000": 0}


@pytest.mark.parametrize(
    ("served", "agreed"), [("the chosen", True), ("another", False), ("", None), (None, None)]
)
async def test_the_booking_follows_whom_the_gateway_took(
    served: str | None, agreed: bool | None
) -> None:
    async with open_desk(2) as desk:
        desk.switch.switch("shadow")
        route = await desk.route(ask(TOKENS))
        chosen = desk.witness.last.chosen[0].address
        other = next(one.address for one in desk.members if one.address != chosen)
        assert loads(desk) == {chosen: 1, other: 0}
        address = {"the chosen": chosen, "another": other}.get(served or "", served)
        route.progress.response_headers(200, address)
        assert loads(desk)[other if agreed is False else chosen] == 1
        assert desk.witness.agreements == [agreed]
        assert desk.witness.answers == [(200, True)], "nobody was named, so nobody was passed over"
        route.progress.finished()
        assert desk.reserved() == 0


async def test_models_still_get_their_other_names() -> None:
    async with open_desk() as desk:
        desk.objectives.swap(declared(rewrites={"r": [("m", "inner")]}))
        desk.switch.switch("shadow")
        route = await desk.route(ask())
        assert route.body is not None
        assert b"inner" in route.body
        for member in desk.members:
            desk.pool.endpoints.set_ready(member.id, False, desk.now)
        unrouted = await desk.route(ask())
        assert (unrouted.destination, unrouted.body) == (None, route.body)
        assert unrouted.model == route.model


async def test_nobody_ready_is_counted_and_lets_the_request_pass() -> None:
    async with open_desk() as desk:
        desk.switch.switch("shadow")
        route = await desk.route(ask(), subset=())
        assert (route.destination, route.set_headers, route.scores) == (None, (), ())
        assert [refusal.reason for refusal in desk.witness.refusals] == ["rejected-no-endpoints"]
        progress = route.progress
        assert progress.response_headers(200, "10.0.0.1:8000") == ()
        progress.body(3)
        progress.usage(Usage())
        progress.finished()
        progress.reset(answered=True)
        assert desk.witness.decisions == []
        desk.switch.switch("normal")
        assert isinstance(await desk.decide(ask(), subset=()), NoEndpoint)


async def test_a_wrong_request_is_refused_as_ever() -> None:
    async with open_desk() as desk:
        desk.switch.switch("shadow")
        assert isinstance(await desk.decide(b"{"), BadRequest)


async def test_nothing_is_shed() -> None:
    async with open_desk(2) as desk:
        desk.objectives.swap(declared({"batch": -1}))
        desk.report([50, 50])
        desk.switch.switch("shadow")
        await desk.route(ask(), headers={OBJECTIVE: "batch"})
        assert desk.witness.refusals == []
        desk.switch.switch("normal")
        assert isinstance(await desk.decide(ask(), headers={OBJECTIVE: "batch"}), Saturated)


async def test_agreement_is_counted_apart_from_whom_a_gateway_passed_over() -> None:
    async with watched() as (desk, metrics, _):
        desk.switch.switch("shadow")
        for served in ("10.0.0.0:8000", "10.0.0.1:8000", None):
            desk.report([0, 9])
            route = await desk.route(ask())
            route.progress.response_headers(200, served)
            route.progress.finished()
        metrics.refresh(desk.now)
        page = metrics.text().decode().splitlines()
    told = {line for line in page if line.startswith("epp_shadow_answers_total{")}
    assert told == {
        f'epp_shadow_answers_total{{outcome="{outcome}"}} 1.0'
        for outcome in ("agreed", "differed", "unknown")
    }
    assert "epp_served_elsewhere_total 0.0" in page
    assert 'epp_mode{mode="shadow"} 1.0' in page


async def test_a_preview_says_what_would_be_chosen() -> None:
    async with open_desk() as desk:
        desk.switch.switch("shadow")
        desk.report([0, 9, 9, 9])
        made = await desk.director.preview(post(ask()))
        assert made.decision.chosen[0].address == "10.0.0.0:8000"
        assert made.shadow
