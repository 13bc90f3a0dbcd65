"""What an operator is told of a decision, and a preview that books nothing."""

import msgspec
import pytest

from epp import protocol
from epp.errors import BadRequest, NoEndpoint
from epp.framework import Role
from epp.request.admin_token import AdminToken
from tests.fakes.desk import ask, open_desk, post

TOKEN = "s3cret-s3cret-s3cret"
LONG = list(range(2000))


@pytest.mark.parametrize(("given", "told"), [(TOKEN, True), ("wrong", False), (None, False)])
async def test_only_the_token_has_the_decision_told_in_the_answer(
    given: str | None, told: bool
) -> None:
    headers = {} if given is None else {protocol.ADMIN_TOKEN: given}
    async with open_desk(1) as desk:
        desk.director._admin = AdminToken(TOKEN)
        route = await desk.route(ask(), headers=headers)
        decision, request, _ = desk.witness.decisions[0]
        marks = route.progress.response_headers(200, None)
    expected = ((protocol.DECISION, f"{decision.request_id} 10.0.0.0:8000"),)
    assert tuple(marks) == (expected if told else ())
    assert protocol.ADMIN_TOKEN not in request.headers


async def test_without_a_token_of_its_own_a_picker_tells_nobody() -> None:
    async with open_desk(1) as desk:
        route = await desk.route(ask(), headers={protocol.ADMIN_TOKEN: ""})
        assert not route.progress.response_headers(200, None)


async def test_a_preview_books_nothing_and_tells_nobody() -> None:
    async with open_desk(2) as desk:
        odd = {protocol.MODEL_REWRITE[0]: "a,b", protocol.ADMIN_TOKEN: TOKEN}
        first = await desk.director.preview(post(ask(LONG), headers=odd))
        again = await desk.director.preview(post(ask(LONG)))
        assert desk.witness.decisions == []
        assert desk.witness.ignored_headers == []
        assert desk.reserved() == 0
        assert all(row.match.tokens == 0 for row in again.decision.table)
        assert protocol.ADMIN_TOKEN not in first.arrival.headers
        await desk.route(ask(LONG))
        after = await desk.director.preview(post(ask(LONG)))
        assert any(row.match.tokens for row in after.decision.table)


async def test_a_preview_refuses_what_would_be_refused() -> None:
    async with open_desk(1) as desk:
        with pytest.raises(BadRequest):
            await desk.director.preview(post(b"broken"))
        with pytest.raises(NoEndpoint):
            await desk.director.preview(post(ask(), subset=()))
        assert desk.witness.refusals == []


async def test_a_decision_names_who_was_left_out_and_why() -> None:
    roles = [Role.DECODE, Role.PREFILL, Role.DECODE, Role.DECODE, Role.ENCODE]
    async with open_desk(roles=roles) as desk:
        desk.pool.endpoints.set_ready(desk.members[2].id, False, desk.now)
        allowed = tuple(f"10.0.0.{n}" for n in (0, 1, 2, 4))
        await desk.route(ask(LONG), subset=allowed)
        decision = desk.witness.last
    assert decision.excluded == (
        ("10.0.0.2:8000", "not ready"),
        ("10.0.0.3:8000", "subset"),
        ("10.0.0.1:8000", "role"),
        ("10.0.0.4:8000", "role"),
    )
    assert decision.left_out == {"not ready": 1, "subset": 1, "role": 2}
    assert decision.split == "split"
    assert [one.address for one in decision.prefill] == ["10.0.0.1:8000"]
    assert dict(decision.prefilling.excluded)["10.0.0.0:8000"] == "destination"
    assert decision.prefilling.left_out["destination"] == 1
    assert decision.plan == "default"
    assert decision.handler == "disagg-profile-handler"
    assert decision.prefilling.decider
    assert msgspec.json.encode(decision.left_out)


async def test_where_nobody_may_prefill_the_decision_says_who_was_looked_at() -> None:
    async with open_desk(roles=[Role.DECODE, Role.ENCODE]) as desk:
        await desk.route(ask(LONG))
        decision = desk.witness.last
    assert decision.split == "no-prefill-pods"
    assert dict(decision.prefilling.excluded)["10.0.0.0:8000"] == "destination"
    assert "10.0.0.1:8000" in dict(decision.prefilling.excluded)


async def test_any_ready_endpoint_is_explained_too() -> None:
    async with open_desk(roles=[Role.DECODE, Role.PREFILL]) as desk:
        desk.switch.switch("random")
        await desk.route(ask())
        decision = desk.witness.last
    assert decision.excluded == (("10.0.0.1:8000", "role"),)
    assert (decision.plan, decision.profile) == ("default", "random")


async def test_of_many_that_were_left_out_a_few_are_named_and_all_are_counted() -> None:
    async with open_desk(roles=[Role.DECODE, *[Role.PREFILL] * 40]) as desk:
        await desk.route(ask())
        decision = desk.witness.last
    assert len(decision.excluded) == 16
    assert decision.left_out == {"role": 40}
