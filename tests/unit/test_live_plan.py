"""The plan in force: built once, swapped whole, and what plugins have learned is kept."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from epp.config.serve import ServeSettings
from epp.errors import ConfigError
from epp.framework import Candidates, Decision, Endpoint, EndpointId, Request
from epp.framework.registry import Kind
from epp.request.plan.live import LivePlan, build, unfollowed
from epp.request.plan.resolve import default_plan, resolve
from epp.request.plan.source import PlanSource
from tests.fakes.plugins import Install, install

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"


@dataclass(kw_only=True)
class Learner:
    """A scorer that remembers, and marks answers."""

    size: int = 1

    def score(self, _: Request, candidates: Candidates, /) -> Sequence[float]:
        return [0.0] * len(candidates)

    def chosen(self, request: Request, decision: Decision, /) -> None: ...

    def removed(self, endpoints: Sequence[EndpointId], /) -> None: ...

    def marks(self, request: Request, served: Endpoint, /) -> Sequence[tuple[str, str]]:
        return []


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Install:
    add = install(monkeypatch)
    add(Kind.SCORER, "learner", Learner)
    return add


def plan_of(*plugins: str) -> str:
    return f"{HEAD}plugins: [{', '.join(plugins)}]"


def test_an_entry_is_built_once_however_often_it_is_used(plugins: Install) -> None:
    profile = "plugins: [{pluginRef: learner}]"
    text = (
        f"{plan_of('{type: learner}', '{type: disagg-profile-handler}')}\n"
        f"schedulingProfiles: [{{name: decode, {profile}}}, {{name: prefill, {profile}}}]"
    )
    built = build(resolve(text.encode(), "f"))
    first, second = (profile.scorers[0].plugin for profile in built.profiles.values())
    assert first is second
    assert [one.name for one in built.watchers] == ["learner"]
    assert [one.name for one in built.markers] == ["learner"]


def test_a_reload_keeps_what_did_not_change_and_what_it_learned(plugins: Install) -> None:
    before = build(resolve(plan_of("{type: learner, parameters: {size: 2}}").encode(), "f"))
    text = plan_of("{type: queue-scorer}", "{type: learner, parameters: {size: 2}}")
    after = build(resolve(text.encode(), "f"), before)
    assert after.plugins["learner"].plugin is before.plugins["learner"].plugin
    other = build(resolve(plan_of("{type: learner, parameters: {size: 3}}").encode(), "f"), after)
    assert other.plugins["learner"].plugin is not before.plugins["learner"].plugin
    assert "queue-scorer" not in other.plugins


def test_a_profile_without_prefixes_keeps_its_load_scorers() -> None:
    profile = build(default_plan()).profiles["decode"]
    load_only = profile.without("prefix-match", "load-only")
    assert load_only.name == "load-only"
    assert load_only.weights.keys() == profile.weights.keys() - {"prefix-cache-scorer"}
    assert load_only.filters == profile.filters


def test_a_swap_changes_everything_at_once() -> None:
    live = LivePlan(build(default_plan()))
    first = live.built
    second = build(resolve(plan_of("{type: queue-scorer}").encode(), "f"))
    live.swap(second)
    assert (live.built, live.plan, live.swaps) == (second, second.plan, 1)
    assert list(first.profiles) == ["decode", "prefill"]


def test_settings_of_producers_hold_from_the_next_start_and_are_told() -> None:
    def fed(tokens: int) -> str:
        given = f"parameters: {{maxPrefixTokensToMatch: {tokens}}}"
        return plan_of(f"{{type: approx-prefix-cache-producer, {given}}}", "{type: queue-scorer}")

    one, same, other = (build(resolve(fed(n).encode(), "f")) for n in (4096, 4096, 8192))
    assert unfollowed(one, same) == ()
    assert unfollowed(one, other) == ("approx-prefix-cache-producer",)
    without = build(resolve(plan_of("{type: queue-scorer}").encode(), "f"))
    assert unfollowed(one, without) == ("approx-prefix-cache-producer",)
    assert unfollowed(without, one) == ("approx-prefix-cache-producer",)


def test_another_source_of_sessions_holds_at_once() -> None:
    def named(header: str) -> str:
        given = f"parameters: {{headerName: {header}}}"
        return plan_of(f"{{type: session-id-producer, {given}}}", "{type: queue-scorer}")

    one, other = (build(resolve(named(header).encode(), "f")) for header in ("x-a", "x-b"))
    assert unfollowed(one, other) == ()


# Where it comes from


def settings(**values: object) -> ServeSettings:
    return ServeSettings.model_validate({"endpoints_file": "e.yaml", **values})


def test_a_text_of_a_flag_is_named_by_it() -> None:
    source = PlanSource.of(settings(config_text=f"{HEAD}plugins: [{{type: x}}]"))
    with pytest.raises(ConfigError, match=r"--config-text:3:12 unknown plugin type 'x'"):
        source.built(source.read())


@pytest.mark.parametrize(
    ("split", "deciders"),
    [
        ("prefix", {"prefix-based-pd-decider": {"nonCachedTokens": 99}}),
        ("always", {"always-disagg-pd-decider": {}}),
        ("never", {}),
    ],
)
def test_the_default_follows_the_flags_of_splitting(
    split: str, deciders: dict[str, object]
) -> None:
    source = PlanSource.of(settings(split=split, split_threshold_tokens=99))
    plan = source.plan(source.read())
    assert {name: use.parameters for name, use in plan.deciders.items()} == deciders
    assert (plan.source, plan.notes) == ("default", ())
