"""Whether a prompt is computed elsewhere, why, and by whom."""

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from epp.config.serve import serve_settings
from epp.errors import ConfigError
from epp.framework import (
    Decision,
    Endpoint,
    EndpointId,
    Incarnation,
    Load,
    Match,
    PoolId,
    Request,
    Role,
    Rung,
    Source,
)
from epp.request.profiles import prefill_profile
from epp.request.split import MAX_CANDIDATES, Decider, SplitRules, Why, verdict, with_prefill

POOL = PoolId("pool")
PROFILE = prefill_profile()
IDLE = Load(waiting=0, running=0)
ASKED = Request(
    id="r",
    api="completions",
    path="/v1/completions",
    prompt_tokens=1000,
    exact=True,
    keys=tuple(range(15)),
    whole="",
)


def pod(number: int, role: Role = Role.PREFILL, **fields: Any) -> Endpoint:
    ident = EndpointId(POOL, f"pod-{number}", 8000)
    return Endpoint(
        id=ident,
        address=f"10.0.0.{number}:8000",
        incarnation=Incarnation(ident, 1),
        role=role,
        **{"load": IDLE, **fields},
    )


def holding(tokens: int, trust: float = 1.0) -> Endpoint:
    source = Source.PRECISE if trust >= 1.0 else Source.PREDICTED
    return pod(0, Role.DECODE, match=Match(tokens, source, trust))


def rules(decider: Decider = Decider.PREFIX, **fields: Any) -> SplitRules:
    return SplitRules(decider=decider, **fields)


def judge(request: Request = ASKED, destination: Endpoint | None = None, **rest: Any) -> Why:
    normal = rest.pop("normal", True)
    return verdict(request, destination or holding(0), rules(**rest), normal=normal)


@pytest.mark.parametrize(
    ("held", "trust", "why"),
    [
        (0, 1.0, Why.SPLIT),
        (488, 1.0, Why.SPLIT),
        (489, 1.0, Why.CACHED),
        (960, 1.0, Why.CACHED),
        (489, 0.9, Why.SPLIT),  # 440 tokens may be counted on
        (640, 0.9, Why.CACHED),
    ],
)
def test_what_the_destination_lacks_is_counted_in_tokens(held: int, trust: float, why: Why) -> None:
    assert judge(destination=holding(held, trust)) is why


@pytest.mark.parametrize(("tokens", "why"), [(511, Why.BELOW_THRESHOLD), (512, Why.SPLIT)])
def test_the_threshold_itself_is_split(tokens: int, why: Why) -> None:
    assert judge(replace(ASKED, prompt_tokens=tokens)) is why


def test_a_prompt_shorter_than_a_block_can_be_split() -> None:
    """Tokens are counted, not blocks."""
    short = replace(ASKED, prompt_tokens=12, keys=())
    assert judge(short, threshold_tokens=8) is Why.SPLIT
    assert judge(short, threshold_tokens=13) is Why.BELOW_THRESHOLD


def test_a_match_beyond_the_prompt_leaves_nothing_to_compute() -> None:
    assert judge(destination=holding(2000), threshold_tokens=1) is Why.CACHED


def test_estimated_tokens_decide_nothing_that_counts_tokens() -> None:
    guessed = replace(ASKED, exact=False, prompt_tokens=10**6)
    assert judge(guessed) is Why.TOKENS_ESTIMATED
    assert judge(guessed, decider=Decider.ALWAYS) is Why.SPLIT


def test_without_matches_the_threshold_cannot_be_applied() -> None:
    blind = replace(ASKED, scored=False)
    assert judge(blind) is Why.LOAD_ONLY
    assert judge(blind, decider=Decider.ALWAYS) is Why.SPLIT


@pytest.mark.parametrize("decider", [Decider.PREFIX, Decider.ALWAYS])
def test_what_one_engine_must_compute_is_never_split(decider: Decider) -> None:
    assert judge(replace(ASKED, whole="n"), decider=decider) is Why.NOT_SPLITTABLE
    assert judge(Request(id="r", api="passthrough", path="/"), decider=decider) is (
        Why.NOT_SPLITTABLE
    )


@pytest.mark.parametrize("decider", [Decider.PREFIX, Decider.ALWAYS])
def test_break_glass_and_a_missing_sidecar_split_nothing(decider: Decider) -> None:
    assert judge(decider=decider, normal=False) is Why.MODE
    bare = pod(0, Role.DECODE, has_sidecar=False)
    assert judge(destination=bare, decider=decider) is Why.NO_SIDECAR


def test_never_needs_no_other_reason() -> None:
    assert judge(Request(id="r", api="", path=""), decider=Decider.NEVER, normal=False) is Why.NEVER


def test_always_splits_a_short_and_cached_prompt() -> None:
    short = replace(ASKED, prompt_tokens=1)
    assert judge(short, holding(1), decider=Decider.ALWAYS) is Why.SPLIT


def decide(
    *eligible: Endpoint, chance: Random | None = None, given: SplitRules | None = None
) -> Decision:
    chosen = Decision(
        request_id="r", chosen=(pod(0, Role.DECODE),), rung=Rung.PRECISE, reasons=("why",)
    )
    return with_prefill(
        chosen,
        ASKED,
        eligible,
        profile=PROFILE,
        rules=given or SplitRules(),
        chance=chance or Random(1),
        normal=True,
    )


def test_candidates_come_best_first_with_a_table_of_their_own() -> None:
    warm = pod(1, match=Match(960, Source.PRECISE))
    busy = pod(2, load=Load(waiting=8, running=0))
    idle = pod(3)
    decision = decide(busy, idle, pod(4, Role.DECODE), warm)
    assert decision.split == "split"
    assert [one.id.name for one in decision.prefill] == ["pod-1", "pod-3"]
    assert [row.endpoint.name for row in decision.prefill_table] == ["pod-1", "pod-3", "pod-2"]
    assert set(decision.prefill_weights) == {
        "prefix-cache-scorer",
        "queue-scorer",
        "token-load-scorer",
    }
    assert decision.table == ()
    assert decision.reasons[0] == "why"
    assert decision.reasons[1].startswith("split: 1000 uncached tokens; prefill: prefix 960/1000")


def test_pending_tokens_count_among_prefill_pods() -> None:
    loaded = pod(1, load=Load(waiting=0, running=0, reserved_prefill_tokens=30_000))
    first = decide(loaded, pod(2)).prefill[0]
    assert first.id.name == "pod-2"


def test_equal_candidates_are_drawn_at_random() -> None:
    chance = Random(3)
    equal = [pod(number) for number in range(1, 5)]
    orders = Counter(
        tuple(one.id.name for one in decide(*equal, chance=chance).prefill) for _ in range(1200)
    )
    assert len(orders) == 12
    assert min(orders.values()) > 50


@pytest.mark.parametrize("count", range(1, MAX_CANDIDATES + 1))
def test_as_many_candidates_as_configured_and_ready(count: int) -> None:
    assert len(decide(*map(pod, range(1, 9)), given=rules(candidates=count)).prefill) == count
    assert len(decide(pod(1), given=rules(candidates=count)).prefill) == 1


def test_the_destination_is_not_its_own_candidate() -> None:
    alone = decide(pod(0, Role.BOTH), pod(5, Role.DECODE))
    assert (alone.split, alone.prefill) == ("no-prefill-pods", ())


def test_without_a_split_the_decision_is_as_it_was() -> None:
    decision = decide(pod(1), given=rules(threshold_tokens=1001))
    assert decision.split == "below-threshold"
    assert (decision.prefill, decision.prefill_table, decision.reasons) == ((), (), ("why",))


@pytest.mark.parametrize("bad", [{"threshold_tokens": 0}, {"candidates": 0}, {"candidates": 5}])
def test_rules_out_of_range_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must"):
        SplitRules(**bad)


def test_the_settings_have_the_defaults_and_bounds_of_the_rules() -> None:
    settings = serve_settings({"endpoints_file": "e.yaml"})
    assert SplitRules() == SplitRules(
        decider=Decider(settings.split),
        threshold_tokens=settings.split_threshold_tokens,
        candidates=settings.prefill_candidates,
    )
    for name, value in (
        ("split", "sometimes"),
        ("split_threshold_tokens", 0),
        ("prefill_candidates", 0),
        ("prefill_candidates", MAX_CANDIDATES + 1),
    ):
        with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')}"):
            serve_settings({"endpoints_file": "e.yaml", name: value})
