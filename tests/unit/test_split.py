"""Whether a prompt is computed elsewhere, why, and by whom."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from epp.config.serve import serve_settings
from epp.errors import ConfigError
from epp.framework import (
    Candidates,
    Course,
    Endpoint,
    Load,
    Match,
    Request,
    Role,
    Source,
)
from epp.request.plan.live import Built
from epp.request.split import Part, Why, Wish, prefill
from tests.fakes.endpoints import endpoint
from tests.fakes.plans import Booth, Broken, Fixed, Only, default_built, profile, with_profile

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
    return endpoint(number, role=role, **{"load": IDLE, **fields})


def holding(tokens: int) -> Endpoint:
    return pod(0, Role.DECODE, match=Match(tokens, Source.PRECISE))


DEFAULT = default_built()


def decide(
    *eligible: Endpoint,
    built: Built = DEFAULT,
    request: Request = ASKED,
    destination: Endpoint | None = None,
    booth: Booth | None = None,
    chance: Random | None = None,
    course: Course | None = None,
    normal: bool = True,
    stage: Callable[[Wish], Part] = prefill,
) -> Part:
    return stage(
        Wish(
            request=request,
            destinations=(destination or pod(0, Role.DECODE),),
            eligible=Candidates.of(eligible),
            built=built,
            course=course or built.handler.plugin.course(request, tuple(built.profiles)),
            chance=chance or Random(1),
            ballot=(booth or Booth()).ballot,
            normal=normal,
        )
    )


def chosen(part: Part) -> list[str]:
    return [] if part.selection is None else [one.id.name for one in part.selection.chosen]


@pytest.mark.parametrize("split", ["prefix", "always"])
def test_what_one_engine_must_compute_is_never_split(split: str) -> None:
    built = default_built(split)
    assert decide(pod(1), built=built, request=replace(ASKED, whole="n")).why == Why.NOT_SPLITTABLE
    odd = Request(id="r", api="passthrough", path="/")
    assert decide(pod(1), built=built, request=odd).why == Why.NOT_SPLITTABLE


@pytest.mark.parametrize("split", ["prefix", "always"])
def test_break_glass_and_a_missing_sidecar_split_nothing(split: str) -> None:
    built = default_built(split)
    assert decide(pod(1), built=built, normal=False).why == Why.MODE
    bare = pod(0, Role.DECODE, has_sidecar=False)
    assert decide(pod(1), built=built, destination=bare).why == Why.NO_SIDECAR


def test_never_needs_no_other_reason() -> None:
    odd = Request(id="r", api="", path="")
    assert decide(built=default_built("never"), request=odd, normal=False).why == Why.NEVER


def test_the_deciders_word_is_the_reason() -> None:
    assert decide(pod(1), destination=holding(489)).why == "cached"
    assert decide(pod(1), destination=holding(488)).why == Why.SPLIT
    assert decide(pod(1), built=default_built("prefix", 1001)).why == "below-threshold"


@pytest.mark.parametrize("word", [7, "", "Two words", "x" * 40, b"split"])
def test_a_decider_that_says_no_word_costs_the_split(word: Any) -> None:
    class Odd:
        def decide(self, *_: object) -> Any:
            return word

    booth = Booth()
    built = replace(DEFAULT, deciders={"odd": Odd()})
    course = Course(destination="decode", prefill="prefill", prefill_decider="odd")
    assert decide(pod(1), built=built, course=course, booth=booth).why == Why.FAILED
    assert booth.failures == [("odd", "no-word")]


def test_a_decider_that_raises_costs_the_split() -> None:
    booth = Booth()
    built = replace(DEFAULT, deciders={"odd": Broken()})
    course = Course(destination="decode", prefill="prefill", prefill_decider="odd")
    assert decide(pod(1), built=built, course=course, booth=booth).why == Why.FAILED
    assert booth.failures == [("odd", "raised")]


def test_without_a_decider_whatever_can_be_split_is() -> None:
    course = Course(destination="decode", prefill="prefill")
    assert decide(pod(1), course=course, request=replace(ASKED, exact=False)).why == Why.SPLIT


def test_candidates_come_best_first_with_a_table_of_their_own() -> None:
    warm = pod(1, match=Match(960, Source.PRECISE))
    busy = pod(2, load=Load(waiting=8, running=0))
    idle = pod(3)
    part = decide(busy, idle, pod(4, Role.DECODE), warm)
    assert part.why == "split"
    assert chosen(part) == ["pod-1", "pod-3"]
    assert part.selection is not None
    assert [row.endpoint.name for row in part.selection.table] == ["pod-1", "pod-3", "pod-2"]
    assert set(part.selection.weights) == {"cost-scorer"}
    assert part.selection.left.excluded(9) == [("prefill-filter", 1, ("10.0.0.4:8000",))]
    (reason,) = part.reasons
    assert reason.startswith("split: 1000 uncached tokens; prefill: prefix 960/1000")


def test_pending_tokens_count_among_prefill_pods() -> None:
    loaded = pod(1, load=Load(waiting=0, running=0, reserved_prefill_tokens=30_000))
    assert chosen(decide(loaded, pod(2)))[0] == "pod-2"


def test_equal_candidates_are_drawn_at_random() -> None:
    chance = Random(3)
    equal = [pod(number) for number in range(1, 5)]
    orders = Counter(tuple(chosen(decide(*equal, chance=chance))) for _ in range(1200))
    assert len(orders) == 12
    assert min(orders.values()) > 50


@pytest.mark.parametrize("count", range(1, 5))
def test_as_many_candidates_as_configured_and_ready(count: int) -> None:
    built = default_built(prefillers=count)
    assert len(chosen(decide(*map(pod, range(1, 9)), built=built))) == count
    assert len(chosen(decide(pod(1), built=built))) == 1


def test_the_destination_is_not_its_own_candidate() -> None:
    alone = decide(pod(0, Role.BOTH), pod(5, Role.DECODE))
    assert (alone.why, chosen(alone)) == ("no-prefill-pods", [])


def test_a_filter_of_the_part_that_fails_or_leaves_nobody_costs_the_split() -> None:
    """Whoever prefills must be one that the filters let through."""
    for one in (Only(), Broken()):
        rated = profile(("any", Fixed(rest=0.5), 1.0), filters={"odd": one})
        built = with_profile(DEFAULT, "prefill", rated)
        assert decide(pod(1), pod(2), built=built).why == Why.NO_PREFILL_PODS


def test_a_part_without_filters_keeps_to_the_role() -> None:
    built = with_profile(DEFAULT, "prefill", profile(("any", Fixed(rest=0.5), 1.0)))
    assert chosen(decide(pod(1, Role.DECODE), pod(2), pod(3, Role.ENCODE), built=built)) == [
        "pod-2"
    ]
    none = decide(pod(1, Role.DECODE), built=built)
    assert none.left is not None
    assert none.left.excluded(9) == [("role", 1, ("10.0.0.1:8000",))]


def test_plugins_of_the_part_see_the_destination() -> None:
    seen: list[Endpoint | None] = []

    class Looks:
        def score(self, request: Request, candidates: Candidates, /) -> list[float]:
            seen.append(request.peer)
            return [0.5] * len(candidates)

    built = with_profile(DEFAULT, "prefill", profile(("looks", Looks(), 1.0)))
    destination = pod(0, Role.DECODE)
    decide(pod(1), built=built, destination=destination)
    assert seen == [destination]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("split", "sometimes"),
        ("split_threshold_tokens", 0),
        ("prefill_candidates", 0),
        ("prefill_candidates", 5),
    ],
)
def test_flags_out_of_range_are_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')}"):
        serve_settings({"endpoints_file": "e.yaml", name: value})
