"""Split decisions as metrics, on the debug pages and in the log."""

import msgspec
import pytest
import structlog

from epp.framework import Role
from epp.observe.alarm import QUIET_S, SplitAlarm
from epp.observe.catalogue import BY_NAME
from epp.observe.explain import Explain
from epp.request.split import Why
from tests.fakes.desk import ask, open_desk
from tests.fakes.watched import watched
from tests.unit.test_observe import page

ROLES = [Role.DECODE, Role.PREFILL]
LONG = list(range(2000))


async def test_reasons_and_the_references_parts_are_counted() -> None:
    async with watched(roles=ROLES) as (desk, metrics, _):
        for body in (ask(LONG), ask(LONG[:100]), ask([1, *LONG]), ask([2, *LONG], n=3)):
            await desk.route(body)
        samples = page(desk, metrics)
    parts = (
        'model_name="m",plugin_name="disagg-profile-handler",plugin_type="disagg-profile-handler"'
    )
    disagg = "llm_d_epp_disagg_decision_total"
    assert samples[disagg + '{decision_type="prefill-decode",' + parts + "}"] == 2
    assert samples[disagg + '{decision_type="decode-only",' + parts + "}"] == 2
    split = "epp_split_decisions_total"
    assert samples[split + '{reason="split"}'] == 2
    assert samples[split + '{reason="below-threshold"}'] == 1
    assert samples[split + '{reason="not-splittable"}'] == 1


@pytest.mark.parametrize("why", list(Why))
def test_every_reason_is_documented(why: Why) -> None:
    told = [BY_NAME[f"epp_{stage}_decisions_total"].help for stage in ("split", "encode")]
    assert any(why in help_ for help_ in told)


async def test_the_decision_page_shows_both_tables() -> None:
    async with watched(roles=[*ROLES, Role.PREFILL, Role.DECODE]) as (desk, _, explain):
        await desk.route(ask(LONG))
        await desk.route(ask([7, *LONG], n=2))
        whole, split = explain.last()
    assert msgspec.json.encode(split)
    assert split["split"] == "split"
    assert {row["address"] for row in split["table"]} == {"10.0.0.0:8000", "10.0.0.3:8000"}
    prefill = split["prefill"]
    assert {row["address"] for row in prefill["table"]} == {"10.0.0.1:8000", "10.0.0.2:8000"}
    assert [one["address"] for one in prefill["candidates"]] == [
        row["address"] for row in prefill["table"]
    ]
    assert set(prefill["table"][0]["scores"]) == set(prefill["weights"])
    assert (whole["split"], whole["whole"]) == ("not-splittable", "n")
    assert whole["prefill"] == {
        "candidates": [],
        "profile": "prefill",
        "decider": "prefix-based-pd-decider",
        "weights": {},
        "table": [],
        "excluded": [],
        "left_out": {},
    }


async def test_the_alarm_looks_only_at_decisions_that_lacked_a_prefill_pod() -> None:
    now = [0.0]
    alarm = SplitAlarm(has_roles=lambda: True, clock=lambda: now[0])
    with structlog.testing.capture_logs() as logs:
        async with open_desk(roles=ROLES) as desk:
            desk.director._observers = (alarm,)
            await desk.route(ask(LONG))
            await desk.route(ask([1]))
            assert logs == []
            desk.pool.replace(desk.members[:1], desk.now)
            for number in range(5):
                await desk.route(ask([number, *LONG]))
                now[0] += QUIET_S / 4
            await desk.decide(b"broken")
            alarm.failed("score")
    assert [line["requests"] for line in logs] == [1, 4]


async def test_the_page_of_decisions_stays_bounded_with_two_tables() -> None:
    explain = Explain(wall=lambda: 0.0, limit=3)
    async with open_desk(roles=[Role.DECODE, *[Role.PREFILL] * 40]) as desk:
        desk.director._observers = (explain,)
        for number in range(5):
            await desk.route(ask([number, *LONG]))
    assert len(explain) == 3
    assert all(len(one["prefill"]["table"]) == 16 for one in explain.last())
