"""Steps of the ladder that a request comes down, and what its decision then says."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import structlog

from epp.framework import Candidates, Course, Decision, Request, Role, Rung
from epp.plugins.pickers.max_score import MaxScore
from epp.request.director import PickSettings
from epp.request.plan.live import BuiltProfile, Named, Rater
from epp.request.profiles import Mode
from tests.fakes.desk import Desk, ask, open_desk, post
from tests.fakes.plans import Booth, Fixed, default_built, profile, with_profile

LONG = list(range(2000))
SPLIT = [Role.DECODE, Role.PREFILL]


def fail(*_: object, **__: object) -> Any:
    raise ZeroDivisionError


async def chosen(desk: Desk, mode: Mode = Mode.NORMAL, *, late: bool) -> tuple[Decision, str]:
    made = await desk.director.preview(post(ask(LONG)))
    decision, why, _ = desk.director._choice.of(
        made.arrival, made.understood, desk.live.built, mode, late=late
    )
    return decision, why


async def test_where_time_is_up_load_decides_and_the_decision_says_so() -> None:
    async with open_desk() as desk:
        decision, why = await chosen(desk, late=True)
        in_time, known = await chosen(desk, late=False)
    assert (decision.rung, why, decision.reasons[0]) == (Rung.LOAD_ONLY, "late", "load only: late")
    assert (in_time.rung, known) == (Rung.PREDICTED, "ok")


async def test_what_nobody_can_score_says_why_and_no_less() -> None:
    async with open_desk() as desk:
        await desk.route(b"{}", path="/v9/unheard")
        decision, _, why = desk.witness.decisions[-1]
    assert (why, decision.reasons[0]) == ("unscored", "load only: unknown path")


async def test_a_mode_is_the_reason_however_late_it_is() -> None:
    async with open_desk() as desk:
        decision, why = await chosen(desk, Mode.LOAD_ONLY, late=True)
        drawn, _ = await chosen(desk, Mode.RANDOM, late=True)
    assert (why, decision.reasons[0]) == ("mode", "load only: mode")
    assert drawn.reasons == ("any of 4 ready", "mode")
    assert (drawn.rung, tuple(drawn.table)) == (Rung.ANY_READY, ())


async def test_each_failed_step_is_a_line_in_the_log_and_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_desk() as desk:
        monkeypatch.setattr("epp.request.choice.schedule", fail)
        with structlog.testing.capture_logs() as logs:
            await desk.route(ask(LONG))
        assert [line["step"] for line in logs if "step" in line] == ["score", "load"]
        assert desk.witness.last.reasons[:2] == ("any of 4 ready", "failed")


async def test_a_failed_look_up_is_told_in_the_decision_by_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_desk() as desk:
        monkeypatch.setattr(desk.pool, "candidates", fail)
        await desk.route(ask(LONG))
        assert desk.witness.last.reasons[0] == "load only: failed"


async def test_by_load_no_scorer_is_asked_that_reads_prefixes() -> None:
    rated = BuiltProfile(
        name="decode",
        filters=(),
        scorers=(
            Rater("prefixes", Fixed(rest=1.0), 1.0, frozenset({"prefix-match"})),
            Rater("load", Fixed(rest=0.5), 2.0, frozenset()),
        ),
        picker=Named("picker", MaxScore()),
    )
    async with open_desk(2, built=with_profile(default_built(), "decode", rated)) as desk:
        decision, _ = await chosen(desk, Mode.LOAD_ONLY, late=False)
        scored, _ = await chosen(desk, late=False)
    assert (decision.weights, decision.profile) == ({"load": 2.0}, "load-only")
    assert (scored.weights, scored.profile) == ({"prefixes": 1.0, "load": 2.0}, "decode")


async def test_by_load_plugins_see_a_request_that_is_not_scored() -> None:
    seen: list[bool] = []

    class Looks:
        def score(self, request: Request, candidates: Candidates, /) -> list[float]:
            seen.append(request.scored)
            return [0.5] * len(candidates)

    rated = profile(("looks", Looks(), 1.0), name="decode")
    async with open_desk(2, built=with_profile(default_built(), "decode", rated)) as desk:
        await chosen(desk, late=False)
        await chosen(desk, late=True)
    assert seen == [True, True, True, False]  # each preview of `chosen` decides as well


async def test_any_that_serves_is_several_where_several_are_named() -> None:
    for count in (1, 3):
        async with open_desk(4, settings=PickSettings(destinations=count)) as desk:
            decision, _ = await chosen(desk, Mode.RANDOM, late=False)
            assert len({one.address for one in decision.chosen}) == count


@pytest.mark.parametrize(
    "course",
    [
        Course(destination="nowhere"),
        Course(destination="decode", prefill="nowhere"),
        Course(destination="decode", prefill="prefill", prefill_decider="nobody"),
        Course(destination="decode", prefill_decider="nobody"),
        Course(destination="decode", encode="nowhere"),
        Course(destination="decode", encode_decider="nobody"),
    ],
)
async def test_a_course_that_names_what_is_not_there_is_the_first_profile(course: Course) -> None:
    decision, booth = await along(lambda *_: course)
    assert booth.failures == [("disagg-profile-handler", "wrong-shape")]
    assert (decision.profile, decision.split) == ("decode", "never")


@pytest.mark.parametrize(
    ("course", "split"),
    [
        (Course(destination="decode"), "never"),
        (Course(destination="decode", prefill="prefill"), "split"),
    ],
)
async def test_a_course_need_not_name_everything(course: Course, split: str) -> None:
    decision, booth = await along(lambda *_: course)
    assert booth.failures == []
    assert (decision.profile, decision.split) == ("decode", split)


async def along(course: Callable[..., Course]) -> tuple[Decision, Booth]:
    class Handler:
        def course(self, *asked: object) -> Course:
            return course(*asked)

    built = default_built()
    handler = replace(built.handler, plugin=Handler())
    async with open_desk(built=replace(built, handler=handler), roles=SPLIT) as desk:
        await desk.route(ask(LONG))
        return desk.witness.last, desk.booth


async def test_both_halves_of_a_split_are_told() -> None:
    async with open_desk(roles=[*SPLIT, Role.PREFILL]) as desk:
        await desk.route(ask(LONG))
        made = desk.witness.last
    assert (made.split, made.profile, made.prefilling.profile) == ("split", "decode", "prefill")
    assert made.prefilling.decider == "prefix-based-pd-decider"
    assert {row.address for row in made.prefilling.table} == {"10.0.0.1:8000", "10.0.0.2:8000"}
    assert set(made.prefilling.weights) == {"cost-scorer"}
    assert len(made.prefill) == 2
    assert made.reasons[-1].startswith("split: 2000 uncached tokens")


async def test_a_split_that_a_comparer_refuses_tells_who_would_have_done_it() -> None:
    class Compares:
        def decide(self, *_: object) -> str:
            return "split"

        def compare(self, *_: object) -> str:
            return "cheaper-here"

    built = default_built()
    (name,) = built.deciders
    built = replace(built, deciders={name: Compares()})
    async with open_desk(built=built, roles=SPLIT) as desk:
        await desk.route(ask(LONG))
        made = desk.witness.last
    assert (made.split, made.prefill) == ("cheaper-here", ())
    assert [row.address for row in made.prefilling.table] == ["10.0.0.1:8000"]


async def test_a_split_that_fails_leaves_the_destination_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_desk(roles=SPLIT) as desk:
        monkeypatch.setattr("epp.request.choice.split.prefill", fail)
        with structlog.testing.capture_logs() as logs:
            await desk.route(ask(LONG))
        made = desk.witness.last
        assert desk.witness.failures == ["split"]
    assert [line["step"] for line in logs if "step" in line] == ["split"]
    assert (made.split, made.prefill, tuple(made.prefilling.table)) == ("failed", (), ())
    assert made.chosen[0].address == "10.0.0.0:8000"


async def test_a_mode_splits_nothing() -> None:
    async with open_desk(roles=SPLIT) as desk:
        for mode in (Mode.LOAD_ONLY, Mode.RANDOM):
            decision, _ = await chosen(desk, mode, late=False)
            assert (decision.split, decision.prefill) == ("mode", ())


async def test_what_one_plugin_did_before_is_not_charged_to_the_next_request() -> None:
    class Waits:
        def __init__(self) -> None:
            self.booth: Booth | None = None

        def score(self, _: Request, candidates: Candidates, /) -> list[float]:
            if self.booth is not None:
                self.booth.now += 0.03  # the machine was busy with something else
            return [0.5] * len(candidates)

    waits = Waits()
    rated = profile(("waits", waits, 1.0), name="decode")
    async with open_desk(2, built=with_profile(default_built("never"), "decode", rated)) as desk:
        waits.booth = desk.booth
        desk.booth.cpu += 5.0
        await desk.route(ask(LONG))
        assert desk.booth.failures == []


async def test_nor_is_it_charged_to_an_admitter() -> None:
    """Which is asked before the others, at the beginning of a request."""
    asked: list[bool] = []

    class Waits:
        def admits(self, *_: object) -> bool:
            desk.booth.now += 0.03  # the machine was busy with something else
            asked.append(True)
            return True

    built = replace(default_built("never"), admitters=(Named("waits", Waits()),))
    async with open_desk(2, built=built) as desk:
        desk.booth.cpu += 5.0
        await desk.route(ask(LONG))
        assert desk.booth.failures == []
    assert asked == [True]


async def test_only_what_is_exactly_known_is_called_precise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However good the index is: keys of an estimated prompt are an estimate."""
    async with open_desk(2) as desk:
        monkeypatch.setattr(desk.pool, "rung", lambda *_: Rung.PRECISE)
        await desk.route(ask(LONG))
        assert desk.witness.last.rung is Rung.PRECISE
        await desk.route(ask("words that no tokenizer has seen"))
        assert desk.witness.last.rung is Rung.PREDICTED


async def test_equal_prompts_of_lately_are_told_to_scorers() -> None:
    seen: list[int] = []

    class Looks:
        def score(self, request: Request, candidates: Candidates, /) -> list[float]:
            seen.append(sum(request.twins.values()))
            return [0.5] * len(candidates)

    rated = profile(("looks", Looks(), 1.0), name="decode")
    async with open_desk(2, built=with_profile(default_built("never"), "decode", rated)) as desk:
        for _ in range(3):
            await desk.route(ask(LONG))
        await desk.route(ask(LONG[::-1]))
    assert seen == [0, 1, 2, 0]


async def test_an_encoding_that_fails_leaves_it_to_the_destination(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("epp.request.choice.split.encode", fail)
    decision, _ = await along(lambda *_: Course(destination="decode", encode="prefill"))
    assert (decision.encoding.why, decision.encoding.chosen) == ("failed", ())
    async with open_desk(roles=SPLIT) as desk:
        assert desk.director._choice.attempt("encode", fail) is None
        assert desk.witness.failures == ["encode"]
