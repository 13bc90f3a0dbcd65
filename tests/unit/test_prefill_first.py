"""`stageOrder: prefill-first`: who computes the prompt is chosen before who answers."""

from dataclasses import replace
from random import Random

import pytest

from epp import protocol
from epp.framework import Candidates, Request, Role, samples
from epp.framework.cost import CostRules, cost
from epp.request.exchange import Route
from epp.request.plan.live import Built, build
from epp.request.plan.resolve import resolve
from epp.request.schedule import schedule
from epp.request.split import Part, Why
from tests.fakes.desk import Desk, ask, open_desk
from tests.fakes.plans import Booth, Broken, Fixed, profile, with_profile

TOKENS = list(range(1000))
D, P, BOTH = Role.DECODE, Role.PREFILL, Role.BOTH
CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
  - type: prefill-filter
  - type: decode-filter
  - type: prefix-cache-scorer
  - type: queue-scorer
  - type: disagg-profile-handler
    parameters: {stageOrder: prefill-first}
schedulingProfiles:
  - {name: prefill, plugins: [{pluginRef: prefill-filter}, {pluginRef: prefix-cache-scorer}]}
  - {name: decode, plugins: [{pluginRef: decode-filter}, {pluginRef: queue-scorer}]}
"""


class Seeing(Fixed):
    """Rates as it is told, and remembers what it saw of the request."""

    def __init__(self, **scores: float) -> None:
        super().__init__(scores)
        self.saw: list[tuple[str | None, bool, int]] = []

    def score(self, request: Request, candidates: Candidates, /) -> list[float]:
        peer = None if request.peer is None else request.peer.id.name
        self.saw.append((peer, request.prefilled, len(candidates)))
        return super().score(request, candidates)


def built() -> Built:
    return build(resolve(CONFIG.encode(), "here"))


def prefiller(route: Route) -> str | None:
    return dict(route.set_headers).get(protocol.PREFILLER)


def address(desk: Desk, number: int) -> str:
    return desk.members[number].address


async def test_profiles_run_in_that_order_and_the_second_sees_whom_the_first_chose() -> None:
    first, second = Seeing(**{"pod-3": 1.0}), Seeing(**{"pod-1": 1.0})
    plan = with_profile(built(), "prefill", profile(("first", first, 1.0), name="prefill"))
    plan = with_profile(plan, "decode", profile(("second", second, 1.0), name="decode"))
    async with open_desk(roles=[D, D, P, P], built=plan) as desk:
        route = await desk.route(ask(TOKENS))
        assert (route.destination, prefiller(route)) == (address(desk, 1), address(desk, 3))
        assert first.saw == [(None, False, 2)]
        assert second.saw == [("pod-3", True, 2)]
        decision = desk.witness.last
        assert decision.split == "split"
        assert decision.prefilling.profile == "prefill"
        assert any(reason.startswith("prefill first: ") for reason in decision.reasons)
        loads = {e.id.name: e.load.reserved_prefill_tokens for e in desk.pool.ready(desk.now)}
        assert loads == {"pod-0": 0, "pod-1": 0, "pod-2": 0, "pod-3": 1000}


async def test_the_same_prompt_goes_to_the_prefill_pod_that_has_computed_it() -> None:
    async with open_desk(roles=[D, D, P, P, P], built=built()) as desk:
        seen = {prefiller(await desk.served(ask(TOKENS))) for _ in range(6)}
    assert len(seen) == 1


async def test_nobody_hands_a_prompt_over_to_itself() -> None:
    async with open_desk(roles=[BOTH, BOTH], built=built()) as desk:
        route = await desk.route(ask(TOKENS))
        assert {route.destination, prefiller(route)} == {address(desk, 0), address(desk, 1)}
    async with open_desk(roles=[BOTH], built=built()) as desk:
        route = await desk.route(ask(TOKENS))
        assert (route.destination, prefiller(route)) == (address(desk, 0), None)
        assert desk.witness.last.split == "no-prefill-pods"
        assert [row.address for row in desk.witness.last.prefilling.table] == [address(desk, 0)]
        assert desk.witness.failures == []


async def test_without_prefill_pods_the_destination_computes_all_and_says_why() -> None:
    async with open_desk(roles=[D, D], built=built()) as desk:
        assert prefiller(await desk.route(ask(TOKENS))) is None
        assert desk.witness.last.split == "no-prefill-pods"
    plan = with_profile(built(), "prefill", profile(name="prefill"))
    async with open_desk(roles=[D, D], built=plan) as desk:
        await desk.route(ask(TOKENS))
        assert desk.witness.last.split == "no-prefill-pods"


async def test_a_destination_without_a_sidecar_computes_all_itself() -> None:
    async with open_desk(roles=[D, P], built=built()) as desk:
        members = [replace(one, has_sidecar=False) for one in desk.members]
        desk.pool.replace(members, desk.now)
        desk.report([0, 0])
        assert prefiller(await desk.route(ask(TOKENS))) is None
        assert desk.witness.last.split == "no-sidecar"
        assert desk.witness.failures == []


@pytest.mark.parametrize("mode", ["load-only", "random"])
async def test_break_glass_modes_split_nothing(mode: str) -> None:
    async with open_desk(roles=[D, P], built=built()) as desk:
        desk.switch.switch(mode)
        route = await desk.route(ask(TOKENS))
        assert (route.destination, prefiller(route)) == (address(desk, 0), None)
        assert desk.witness.last.split == "mode"


async def test_what_one_engine_must_compute_is_not_split() -> None:
    async with open_desk(roles=[D, P], built=built()) as desk:
        assert prefiller(await desk.route(ask(TOKENS, n=2))) is None
        assert desk.witness.last.split == "not-splittable"


async def test_where_prefixes_cannot_be_looked_up_load_alone_splits() -> None:
    async with open_desk(roles=[D, P], built=built()) as desk:
        route = await desk.route(b'{"model": "m", "input": "x"}', path="/v1/embeddings")
        assert prefiller(route) is None, "an API whose answers are no tokens"
        desk.pool.candidates = Broken().score  # type: ignore[method-assign,assignment]
        route = await desk.route(ask(TOKENS))
        assert prefiller(route) == address(desk, 1)
        assert desk.witness.last.rung.name == "LOAD_ONLY"


async def test_a_prefill_profile_that_fails_costs_the_split_and_not_the_request() -> None:
    plan = with_profile(built(), "prefill", profile(("broken", Broken(), 1.0), name="prefill"))
    async with open_desk(roles=[D, P], built=plan) as desk:
        route = await desk.route(ask(TOKENS))
        assert route.destination == address(desk, 0)


async def test_a_choice_of_who_prefills_that_fails_is_ours_and_costs_the_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("epp.request.choice.split.ahead", Broken().pick)
    async with open_desk(roles=[D, P], built=built()) as desk:
        route = await desk.route(ask(TOKENS))
        assert (route.destination, prefiller(route)) == (address(desk, 0), None)
        assert (desk.witness.last.split, desk.witness.failures) == ("failed", ["split"])


def test_a_pod_that_would_do_it_best_but_need_not_is_nobody() -> None:
    found = schedule(
        Request(id="r", api="c", path="/"),
        Candidates.of([samples.endpoint(Random(2), 0)]),
        profile(name="prefill"),
        Random(1),
        Booth().ballot,
    )
    assert Part(why=Why.SPLIT, selection=found).first == found.chosen[0]
    assert Part(why="cheaper-here", selection=found).first is None


def test_who_answers_computes_nothing_and_pulls_what_it_lacks() -> None:
    draws = Random(2)
    ends = [samples.endpoint(draws, number) for number in range(2)]
    request = Request(id="r", api="c", path="/", prompt_tokens=1000, output_tokens=100)
    alone = cost(request, Candidates.of(ends), CostRules())
    after = cost(replace(request, peer=ends[0], prefilled=True), Candidates.of(ends), CostRules())
    assert not after.compute.any()
    assert not after.stall.any()
    assert list(after.slowdown) == list(alone.slowdown), "it writes the answer"
    assert (after.transfer > 0.0).all()
