"""The demo's promises on fleets of other shapes than the demo's own."""

import random
from pathlib import Path

import pytest

from epp.sim.fleets.fleet import Fleet
from epp.sim.fleets.parts import FleetSettings, Gateway, Store
from epp.sim.fleets.ports import auto_ports
from epp.sim.promises import claims, split_claims
from tests.timing import SCALE

rng = random.SystemRandom()


def settings(
    directory: Path, *, engines: int, store: Store = "memory", envoy: Gateway = "standalone"
) -> FleetSettings:
    ports = auto_ports(engines, rng)
    return FleetSettings(engines=engines, ports=ports, store=store, envoy=envoy, run_dir=directory)


def assert_all_hold(results: list[claims.Result]) -> None:
    assert results
    assert [result for result in results if not result.holds] == []


async def test_prefixes_and_a_killed_engine_with_answers_through_the_picker(tmp_path: Path) -> None:
    async with Fleet(settings(tmp_path, engines=2, envoy="full-duplex")) as fleet:
        trial = claims.Trial(fleet, rng, SCALE)
        assert_all_hold(await claims.prefixes(trial))
        assert_all_hold(await claims.engine_killed(trial))


async def test_a_killed_picker_with_the_embedded_log_comes_back_warm(tmp_path: Path) -> None:
    async with Fleet(settings(tmp_path, engines=2)) as fleet:
        trial = claims.Trial(fleet, rng, SCALE)
        head = trial.text(200)
        first = await trial.ask(head)
        assert_all_hold(await claims.picker_killed(trial))
        again = await trial.ask(f"{head} {trial.text(3)}")
        assert again.pod == first.pod
        assert again.cached_tokens > 0


async def test_redis_stops_and_starts_with_answers_through_the_picker(tmp_path: Path) -> None:
    options = settings(tmp_path, engines=2, store="redis", envoy="full-duplex")
    async with Fleet(options) as fleet:
        trial = claims.Trial(fleet, rng, SCALE)
        assert_all_hold(await claims.redis_gone(trial))
        assert_all_hold(await claims.prefixes(trial))


async def test_the_checks_notice_what_does_not_hold(tmp_path: Path) -> None:
    async with Fleet(settings(tmp_path, engines=2)) as fleet:
        trial = claims.Trial(fleet, rng, SCALE)
        without_redis = await claims.run(trial, "Redis", claims.redis_gone)
        async with fleet.session.post(f"{fleet.admin}/debug/mode", json={"mode": "random"}) as done:
            assert done.status == 200
        at_random = await claims.run(trial, "prefixes", claims.prefixes)
        crowded = await claims.run(trial, "burst", claims.burst)  # 40 on 2 engines: 20 at least
    assert [result.holds for result in without_redis] == [False]
    assert "no part is called 'redis'" in without_redis[0].measured
    assert not at_random[0].holds
    assert not crowded[0].holds


async def test_split_prompts_with_answers_through_the_picker(tmp_path: Path) -> None:
    ports = auto_ports(2, rng)
    options = FleetSettings(
        prefill=1, decode=1, ports=ports, envoy="full-duplex", store="redis", run_dir=tmp_path
    )
    async with Fleet(options) as fleet:
        trial = claims.Trial(fleet, rng, SCALE)
        for name, check in split_claims.CHECKS:
            assert_all_hold(await claims.run(trial, name, check))


async def test_the_checks_of_the_split_notice_what_does_not_hold(tmp_path: Path) -> None:
    """Nothing is split; and then what is split has no prefill engine behind it."""
    ports = auto_ports(2, rng)
    options = FleetSettings(prefill=1, decode=1, ports=ports, split="never", run_dir=tmp_path)
    async with Fleet(options) as fleet:
        trial = claims.Trial(fleet, rng, 0.1)
        never = await claims.run(trial, "long", split_claims.long_prompts)
        alone = await claims.run(trial, "others", split_claims.not_worth_it)
        await fleet.supervisor.kill("prefill-0")
        dead = await claims.run(trial, "parameters", split_claims.clients_parameters)
    assert [result.holds for result in never] == [False, True]  # the answers are right all the same
    assert not alone[0].holds
    assert not dead[0].holds


@pytest.mark.long
async def test_every_promise_holds_ten_times_in_a_row(tmp_path: Path) -> None:
    async with Fleet(settings(tmp_path, engines=4, store="redis")) as fleet:
        trial = claims.Trial(fleet, rng, SCALE)
        for _ in range(10):
            for name, check in (*claims.CHECKS, *claims.REDIS_CHECKS):
                assert_all_hold(await claims.run(trial, name, check))
