"""Split decisions over the real pool state: the header, the charge, the way down the ladder."""

from collections import Counter
from typing import Any

import pytest

from epp import protocol
from epp.errors import NoEndpoint
from epp.framework import Role
from epp.request.exchange import Route
from epp.request.plan.live import Built
from tests.fakes.desk import Desk, ask, open_desk
from tests.fakes.plans import Broken, default_built, profile, with_profile

TOKENS = list(range(1000))
D, P, BOTH, NONE = Role.DECODE, Role.PREFILL, Role.BOTH, Role.UNLABELLED


def broken_part() -> Built:
    """A plan whose prefill profile has one scorer, which raises."""
    return with_profile(default_built(), "prefill", profile(("broken", Broken(), 1.0)))


def prefillers(route: Route) -> list[str]:
    """Pods in the header, by number."""
    value = dict(route.set_headers).get(protocol.PREFILLER, "")
    return [item.removeprefix("10.0.0.").removesuffix(":8000") for item in value.split(",") if item]


def hold(desk: Desk, number: int, keys: tuple[int, ...]) -> None:
    life = desk.pool.endpoints.incarnation(desk.members[number].id)
    assert life is not None
    desk.index.store(life, keys)


async def keys_of(desk: Desk, tokens: list[int]) -> tuple[int, ...]:
    """Block keys of a prompt; the probe leaves no load and no prediction."""
    probe = await desk.route(ask(tokens))
    probe.progress.reset(answered=False)
    return desk.witness.decisions[-1][1].keys


async def test_a_long_uncached_prompt_goes_to_a_decode_pod_with_two_candidates() -> None:
    async with open_desk(roles=[D, D, P, P, P]) as desk:
        route = await desk.route(ask(TOKENS))
        decision = desk.witness.last
    assert route.destination in {"10.0.0.0:8000", "10.0.0.1:8000"}
    assert len(prefillers(route)) == 2
    assert set(prefillers(route)) <= {"2", "3", "4"}
    assert decision.split == "split"
    assert (
        ",".join(one.address for one in decision.prefill)
        == dict(route.set_headers)["x-prefiller-host-port"]
    )


async def test_an_ipv6_candidate_is_named_in_brackets() -> None:
    async with open_desk(roles=[D, P]) as desk:
        desk.members[1] = type(desk.members[1])(
            id=desk.members[1].id, address="[fd00::7]:8000", role=P
        )
        desk.pool.replace(desk.members, desk.now)
        route = await desk.route(ask(TOKENS))
    assert dict(route.set_headers)[protocol.PREFILLER] == "[fd00::7]:8000"


async def test_a_pool_without_roles_decides_as_without_a_decider() -> None:
    async def run(**how: Any) -> list[tuple[str, tuple[str, ...]]]:
        seen = []
        async with open_desk(4, **how) as desk:
            for number in range(40):
                route = await desk.route(ask(TOKENS[: 40 * number + 1]))
                names = tuple(name for name, _ in route.set_headers)
                seen.append((route.destination, names))
        return seen

    plain = await run(split="never")
    assert await run() == plain
    assert await run(split="always") == plain


@pytest.mark.parametrize(
    ("body", "how", "why"),
    [
        (ask(TOKENS), {}, "split"),
        (ask(TOKENS[:511]), {}, "below-threshold"),
        (ask("text " * 2000), {}, "tokens-estimated"),
        (ask("text " * 2000), {"split": "always"}, "split"),
        (ask([1]), {"split": "always"}, "split"),
        (ask(TOKENS, n=2), {"split": "always"}, "not-splittable"),
        (ask([TOKENS, TOKENS]), {}, "not-splittable"),
        (ask(TOKENS, max_tokens=1), {}, "not-splittable"),
        (ask(TOKENS), {"split": "never"}, "never"),
        (ask(TOKENS), {"built": broken_part()}, "split"),
    ],
)
async def test_the_reason_stands_in_the_decision(body: Any, how: dict[str, Any], why: str) -> None:
    async with open_desk(roles=[D, P], **how) as desk:
        route = await desk.route(body)
        assert desk.witness.last.split == why
        assert prefillers(route) == (["1"] if why == "split" else [])
        assert route.destination == "10.0.0.0:8000"


async def test_a_step_of_a_split_that_raises_costs_the_split_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError

    async with open_desk(roles=[D, P]) as desk:
        monkeypatch.setattr("epp.request.split.schedule", fail)
        assert prefillers(await desk.route(ask(TOKENS))) == []
        assert (desk.witness.last.split, desk.witness.failures) == ("failed", ["split"])


async def test_without_a_look_up_the_threshold_cannot_be_applied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError

    for split, why in (("prefix", "load-only"), ("always", "split")):
        async with open_desk(roles=[D, P], split=split) as desk:
            monkeypatch.setattr(desk.pool, "candidates", fail)
            await desk.route(ask(TOKENS))
            assert desk.witness.last.split == why


async def test_a_get_and_an_unknown_path_are_not_split() -> None:
    async with open_desk(roles=[D, P], split="always") as desk:
        await desk.route(method="GET", path="/v1/models")
        await desk.route(ask(TOKENS), path="/v1/embeddings")
        reasons = [decision.split for decision, *_ in desk.witness.decisions]
    assert reasons == ["not-splittable"] * 2


async def test_a_cached_prompt_stays_where_it_is() -> None:
    async with open_desk(roles=[D, D, P]) as desk:
        hold(desk, 1, await keys_of(desk, TOKENS))
        route = await desk.route(ask(TOKENS))
        assert (route.destination, prefillers(route)) == ("10.0.0.1:8000", [])
        assert desk.witness.last.split == "cached"


@pytest.mark.parametrize("mode", ["load-only", "random"])
async def test_break_glass_modes_split_nothing_and_keep_prefill_pods_out(mode: str) -> None:
    async with open_desk(roles=[P, D, P, Role.ENCODE], split="always") as desk:
        desk.switch.switch(mode)
        for _ in range(20):
            route = await desk.route(ask(TOKENS))
            assert (route.destination, prefillers(route)) == ("10.0.0.1:8000", [])
        assert desk.witness.last.split == "mode"
        assert {end.id for end in desk.witness.last.chosen} == {desk.members[1].id}


async def test_candidates_keep_to_the_gateways_subset() -> None:
    async with open_desk(roles=[D, P, P]) as desk:
        inside = await desk.route(ask(TOKENS), subset=("10.0.0.0", "10.0.0.2"))
        inside.progress.reset(answered=False)
        outside = await desk.route(ask(TOKENS), subset=("10.0.0.0",))
        assert (prefillers(inside), prefillers(outside)) == (["2"], [])
        assert desk.witness.last.split == "no-prefill-pods"
        assert isinstance(await desk.decide(ask(TOKENS), subset=("10.0.0.1",)), NoEndpoint)


async def test_a_destination_without_a_sidecar_computes_all_of_it() -> None:
    async with open_desk(roles=[D, P]) as desk:
        bare = desk.members[0]
        desk.members[0] = type(bare)(id=bare.id, address=bare.address, role=D, has_sidecar=False)
        desk.pool.replace(desk.members, desk.now)
        assert prefillers(await desk.route(ask(TOKENS))) == []
        assert desk.witness.last.split == "no-sidecar"


async def test_pods_of_both_roles_prefill_for_each_other() -> None:
    async with open_desk(roles=[BOTH, BOTH]) as desk:
        for _ in range(10):
            route = await desk.route(ask(TOKENS))
            assert prefillers(route) == [{"0": "1", "1": "0"}[route.destination[7]]]
            route.progress.reset(answered=False)


async def test_the_sidecar_is_told_what_is_cached_where_the_prompt_is_computed() -> None:
    async with open_desk(roles=[D, P]) as desk:
        hold(desk, 1, (await keys_of(desk, TOKENS))[:3])
        route = await desk.route(ask(TOKENS))
    assert dict(route.set_headers)[protocol.PREDICTED_CACHED_TOKENS] == "192"


async def test_equal_prompts_are_all_split_until_the_first_has_arrived() -> None:
    """What is under way is not cached yet: decode pods would compute each of them."""
    async with open_desk(roles=[D, P, P]) as desk:
        routes = [await desk.route(ask(TOKENS)) for _ in range(6)]
        assert all(map(prefillers, routes))
        routes[0].progress.response_headers(200, None)
        assert not prefillers(await desk.route(ask(TOKENS)))
        assert desk.witness.last.split == "cached"


async def test_prefills_spread_by_their_tokens() -> None:
    async with open_desk(roles=[D, P, P, P, P]) as desk:
        first = Counter(
            [
                prefillers(await desk.route(ask([number * 1000 + i for i in TOKENS])))[0]
                for number in range(40)
            ]
        )
    assert set(first.values()) == {10}


async def test_ends_of_a_split_request_leave_no_load_anywhere() -> None:
    async with open_desk(roles=[D, P]) as desk:
        for number, end in enumerate(("finished", "reset", "finished")):
            progress = (await desk.route(ask([number, *TOKENS]))).progress
            assert desk.reserved() == 2
            if end == "reset":
                progress.reset(answered=False)
            else:
                progress.response_headers(200, None)
                assert desk.reserved() == 1
                progress.body(1)
                progress.finished()
            assert desk.reserved() == 0
