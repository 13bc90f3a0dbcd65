"""What is said of a split: the words themselves, and who was looked at when there is none."""

from dataclasses import replace

import pytest

from epp.framework import Course, Endpoint, Request, Role
from epp.request.split import Part, Why
from tests.fakes.plans import Booth
from tests.unit.test_split import DEFAULT, chosen, decide, pod

COURSE = Course(destination="decode", prefill="prefill", prefill_decider="odd")


class Compares:
    """Says these words, before and after somebody was found."""

    def __init__(self, first: str, last: str) -> None:
        self.first, self.last = first, last
        self.pair: tuple[Endpoint | None, str, str] | None = None

    def decide(self, _: Request, __: Endpoint, /) -> str:
        return self.first

    def compare(self, request: Request, destination: Endpoint, prefill: Endpoint, /) -> str:
        self.pair = (request.peer, destination.id.name, prefill.id.name)
        return self.last


def with_decider(decider: object, *, booth: Booth | None = None) -> Part:
    built = replace(DEFAULT, deciders={"odd": decider})
    return decide(pod(1), built=built, course=COURSE, booth=booth)


def test_the_words_are_those_of_the_metric() -> None:
    assert [str(why) for why in Why] == [
        "split",
        "never",
        "mode",
        "not-splittable",
        "no-media",
        "no-sidecar",
        "no-prefill-pods",
        "no-encode-pods",
        "failed",
    ]


def test_where_there_is_nobody_else_the_part_says_who_was_looked_at() -> None:
    part = decide(pod(0, Role.BOTH))
    assert (part.why, part.selection) == ("no-prefill-pods", None)
    assert part.left is not None
    assert part.left.excluded(9) == [("destination", 1, ("10.0.0.0:8000",))]


def test_nobody_is_looked_at_where_the_first_word_is_against_it() -> None:
    part = with_decider(Compares("busy", "split"))
    assert (part.why, part.left, part.selection, part.reasons) == ("busy", None, None, ())


def test_a_comparers_last_word_counts_and_its_choice_is_told() -> None:
    decider = Compares("split", "cheaper-here")
    part = with_decider(decider)
    assert (part.why, chosen(part), part.reasons) == ("cheaper-here", ["pod-1"], ())
    assert part.left is not None
    assert len(part.left) == 1
    assert decider.pair == (pod(0, Role.DECODE), "pod-0", "pod-1")
    assert with_decider(Compares("split", "split")).why == "split"


@pytest.mark.parametrize(
    ("word", "why"), [("x" * 32, "x" * 32), ("x" * 33, "failed"), ("a-1", "a-1"), ("1a", "failed")]
)
def test_a_word_is_short_and_plain(word: str, why: str) -> None:
    booth = Booth()
    assert with_decider(Compares("split", word), booth=booth).why == why
    assert booth.failures == ([("odd", "no-word")] if why == "failed" else [])


def test_a_part_needs_no_reasons_but_where_it_is_one() -> None:
    assert Part(why="x").reasons == ()
    assert len(with_decider(Compares("split", "split")).reasons) == 1
