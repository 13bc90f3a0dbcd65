"""What a plugin's failure costs: its vote, a count, and a line in the log now and then."""

from dataclasses import replace
from functools import partial

import pytest
import structlog

from epp.framework import Course, Endpoint, NoCourse
from epp.request.ballot import QUIET_S, Why
from epp.request.plan.live import Named
from tests.fakes.desk import ask, open_desk
from tests.fakes.plans import Booth, Broken, Fixed, default_built, profile, with_profile


def raises(error: Exception) -> None:
    raise error


def test_an_answer_in_time_counts() -> None:
    booth = Booth()
    assert booth.ballot.ask("a", lambda: 7) == 7
    assert booth.failures == []


@pytest.mark.parametrize("error", [ValueError("a secret prompt"), KeyError(), RecursionError()])
def test_what_a_plugin_raises_stays_here_and_its_words_are_not_logged(error: Exception) -> None:
    booth = Booth()
    with structlog.testing.capture_logs() as logs:
        assert booth.ballot.ask("a", partial(raises, error)) is None
    assert booth.failures == [("a", "raised")]
    (line,) = logs
    assert (line["plugin"], line["why"], line["kind"]) == ("a", "raised", type(error).__name__)
    assert "secret" not in str(logs)


def test_a_handlers_own_refusal_passes() -> None:
    with pytest.raises(NoCourse, match="no such"):
        Booth().ballot.ask("a", partial(raises, NoCourse("no such profile")))


def test_the_log_has_one_line_of_a_plugin_in_ten_seconds_and_the_count_has_all() -> None:
    booth = Booth()
    with structlog.testing.capture_logs() as logs:
        for _ in range(50):
            booth.ballot.blame("a", Why.NOT_FINITE)
        booth.ballot.blame("b", Why.SLOW)
        booth.now += QUIET_S
        booth.ballot.blame("a", Why.NOT_FINITE)
    assert [line["plugin"] for line in logs] == ["a", "b", "a"]
    assert len(booth.failures) == 52


def test_each_plugin_pays_for_its_own_time_only() -> None:
    booth = Booth()

    def takes(cpu: float, wall: float) -> int:
        booth.cpu += cpu
        booth.now += wall
        return 1

    booth.cpu += 5.0  # of other work, before anybody was asked
    booth.ballot.begin()
    assert booth.ballot.ask("slow", partial(takes, 0.03, 0.03)) is None
    assert booth.ballot.ask("held up", partial(takes, 0.001, 0.1)) == 1
    assert booth.ballot.ask("quick", partial(takes, 0.001, 0.001)) == 1
    assert booth.failures == [("slow", "slow")]


class Watches:
    """A scorer that wants to know, and fails at it."""

    def score(self, _: object, candidates: list[object], /) -> list[float]:
        return [0.5] * len(candidates)

    def chosen(self, *_: object) -> None:
        raise ZeroDivisionError

    def removed(self, *_: object) -> None:
        raise ZeroDivisionError


async def test_a_handler_that_fails_gives_the_first_profile() -> None:
    class Odd:
        def course(self, *_: object) -> Course:
            return Course(destination="nowhere")

    built = default_built()
    for plugin, why in ((Broken(), "raised"), (Odd(), "wrong-shape")):
        handler = replace(built.handler, plugin=plugin)
        async with open_desk(2, built=replace(built, handler=handler)) as desk:
            await desk.route(ask())
            assert desk.witness.last.profile == "decode"
            assert desk.booth.failures == [(built.handler.name, why)]


async def test_a_failing_scorer_costs_no_rung() -> None:
    rated = profile(("bad", Broken(), 9.0), ("ok", Fixed({"pod-1": 1.0}), 1.0), name="decode")
    async with open_desk(3, built=with_profile(default_built(), "decode", rated)) as desk:
        route = await desk.route(ask(list(range(640))))
        assert route.destination == "10.0.0.1:8000"
        decision, _, why = desk.witness.decisions[-1]
        assert (why, decision.split, decision.weights) == ("ok", "no-prefill-pods", {"ok": 1.0})
        assert desk.witness.failures == []
        assert desk.booth.failures == [("bad", "raised")]


async def test_a_watcher_and_a_marker_that_fail_cost_nothing() -> None:
    built = replace(
        default_built(),
        watchers=(Named("watches", Watches()),),
        markers=(Named("marks", Broken()), Named("odd", Marks())),
    )
    async with open_desk(2, built=built) as desk:
        route = await desk.route(ask())
        assert desk.booth.failures == [("watches", "raised")]
        marks = route.progress.response_headers(200, route.destination)
        assert list(marks) == [("x-mark", route.destination)]
        assert desk.booth.failures[1:] == [("marks", "raised")] + [("odd", "no-word")] * 4


class Marks:
    """Says who served, and some things that no header can hold."""

    def marks(self, _: object, served: object, /) -> list[object]:
        address = getattr(served, "address", "")
        return [("X-Mark", address), ("x y", "1"), ("x", "a\r\nb"), ("x",), ("x", 1)]


async def test_marks_are_made_for_who_truly_served() -> None:
    class Who:
        def marks(self, _: object, served: object, /) -> list[tuple[str, str]]:
            return [("x-mark", getattr(served, "address", ""))]

    built = replace(default_built(), markers=(Named("who", Who()),))
    async with open_desk(2, built=built) as desk:
        route = await desk.route(ask())
        (other,) = {"10.0.0.0:8000", "10.0.0.1:8000"} - {route.destination}
        assert list(route.progress.response_headers(200, other)) == [("x-mark", other)]
        silent = await desk.route(ask())
        said = list(silent.progress.response_headers(200, None))
        assert said == [("x-mark", silent.destination)]
        unknown = await desk.route(ask())
        assert list(unknown.progress.response_headers(200, "10.9.9.9:1")) == []


async def test_followers_hear_who_served_in_place_of_the_chosen_where_that_went_well() -> None:
    heard: list[tuple[str, str]] = []

    class Hears:
        def served(self, _: object, chosen: Endpoint, served: Endpoint, /) -> None:
            heard.append((chosen.address, served.address))

    followers = (Named("broken", Broken()), Named("hears", Hears()))
    async with open_desk(2, built=replace(default_built(), followers=followers)) as desk:
        for status, served in ((503, "the other"), (200, "the chosen"), (200, "10.9.9.9:1")):
            route = await desk.route(ask())
            (other,) = {"10.0.0.0:8000", "10.0.0.1:8000"} - {route.destination}
            known = {"the other": other, "the chosen": route.destination}
            route.progress.response_headers(status, known.get(served, served))
        assert heard == []
        again = await desk.route(ask())
        (other,) = {"10.0.0.0:8000", "10.0.0.1:8000"} - {again.destination}
        again.progress.response_headers(200, other)
        assert heard == [(again.destination, other)]
        assert desk.booth.failures == [("broken", "raised")]
        again.progress.response_headers(200, other)
        assert len(heard) == 1


async def test_a_primary_port_stands_for_all_engines_of_a_pod() -> None:
    class DataParallel:
        def course(self, *_: object) -> Course:
            return Course(destination="decode", primary_port=9000)

    built = default_built()
    handler = replace(built.handler, plugin=DataParallel())
    async with open_desk(1, built=replace(built, handler=handler)) as desk:
        route = await desk.route(ask())
        assert route.destination == "10.0.0.0:9000"
        assert dict(route.set_headers)["x-data-parallel-host-port"] == "10.0.0.0:8000"
        route.progress.response_headers(200, "10.0.0.0:9000")
        assert desk.witness.answers == [(200, True)]
        assert desk.reserved() == 1
