"""The limits of a plugin's time, exactly, and the words of its failures."""

import pytest

from epp.framework import NoCourse
from epp.request.ballot import LIMIT_S, QUIET_S, WAIT_S, Why
from tests.fakes.plans import Booth, Broken


def takes(booth: Booth, *, cpu: float = 0.0, wall: float = 0.0) -> int:
    booth.cpu += cpu
    booth.now += wall
    return 1


@pytest.mark.parametrize(
    ("cpu", "wall", "answer"),
    [
        (0.0, LIMIT_S / 2, 1),
        (LIMIT_S / 2, WAIT_S * 0.9, 1),
        (LIMIT_S * 1.1, LIMIT_S / 2, 1),  # measured by the wall's clock first: it is the cheap one
        (LIMIT_S * 1.1, WAIT_S / 2, None),
        (0.0, WAIT_S * 1.1, None),
    ],
)
def test_a_plugin_is_slow_by_its_own_work_or_by_waiting(
    cpu: float, wall: float, answer: int | None
) -> None:
    booth = Booth()
    booth.ballot.begin()
    assert booth.ballot.ask("a", lambda: takes(booth, cpu=cpu, wall=wall)) == answer
    assert booth.failures == ([] if answer else [("a", "slow")])


@pytest.mark.parametrize(("cpu", "wall"), [(0.015625, 0.25), (0.0, 0.03125)])
def test_limits_hold_beyond_them_only(
    monkeypatch: pytest.MonkeyPatch, cpu: float, wall: float
) -> None:
    """Powers of two, of which sums are exact."""
    monkeypatch.setattr("epp.request.ballot.LIMIT_S", 0.015625)
    monkeypatch.setattr("epp.request.ballot.WAIT_S", 0.25)
    booth = Booth()
    booth.ballot.begin()
    assert booth.ballot.ask("a", lambda: takes(booth, cpu=cpu, wall=wall)) == 1


def test_a_ballot_that_was_never_begun_counts_from_when_it_was_made() -> None:
    booth = Booth()
    assert booth.ballot.ask("a", lambda: takes(booth, cpu=0.001, wall=0.03)) == 1
    assert booth.ballot.ask("b", lambda: takes(booth, cpu=0.03, wall=0.03)) is None


def test_work_before_a_ballot_is_on_nobodys_account() -> None:
    booth = Booth()
    booth.cpu += 5.0
    booth.ballot.begin()
    assert booth.ballot.ask("a", lambda: takes(booth, cpu=0.001, wall=0.03)) == 1


def test_a_plugin_is_told_things_and_its_failure_is_counted() -> None:
    booth = Booth()
    heard: list[int] = []
    booth.ballot.tell("a", lambda: heard.append(1))
    booth.ballot.tell("b", Broken().pick)
    assert heard == [1]
    assert booth.failures == [("b", "raised")]


def test_the_limits_are_those_that_the_documents_name() -> None:
    assert (LIMIT_S, WAIT_S, QUIET_S) == (0.02, 0.2, 10.0)
    assert [str(why) for why in Why] == [
        "raised",
        "slow",
        "wrong-shape",
        "not-finite",
        "out-of-range",
        "no-word",
    ]


def test_a_refusal_of_a_course_is_no_failure() -> None:
    booth = Booth()

    def refuses() -> int:
        raise NoCourse("nothing fits")

    with pytest.raises(NoCourse):
        booth.ballot.ask("a", refuses)
    assert booth.failures == []
