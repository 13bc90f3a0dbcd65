"""The order of an engine's messages: gaps, restarts, replays, memories."""

import pytest

from epp.state.events import Frame
from epp.state.sequence import Continuity, Forget, Proven, continuity
from epp.state.sequencer import ATTEMPTS, COOLDOWN_S, Sequencer


class Bench:
    """One sequencer, a clock that stands still, and what was applied."""

    def __init__(self, *, replays: bool = True, **limits: int) -> None:
        self.now = 0.0
        self.sequencer = Sequencer(replays=replays, clock=lambda: self.now, **limits)
        self.told: list[int | Forget | Proven] = []

    def live(self, *seqs: int) -> "Bench":
        for seq in seqs:
            self._took(self.sequencer.live(frame(seq)))
        return self

    def replay(self, *seqs: int, complete: bool = True) -> "Bench":
        for seq in seqs:
            self._took(self.sequencer.replayed(frame(seq)))
        self._took(self.sequencer.replay_ended(complete=complete))
        return self

    @property
    def start(self) -> int | None:
        wanted = self.sequencer.wanted
        return None if wanted is None else wanted.start

    def _took(self, steps: "list[Frame | Forget | Proven]") -> None:
        self.told += [step.seq if isinstance(step, Frame) else step for step in steps]


def frame(seq: int, size: int = 1) -> Frame:
    return Frame(b"kv", seq, bytes(size))


def test_a_sequence_is_followed_through_gaps_restarts_and_repeats() -> None:
    seqs = (5, 6, 6, 9, 10, 0, 1, 0, 0, 1)
    assert [continuity(*pair) for pair in zip((None, *seqs), seqs, strict=False)] == [
        Continuity.FIRST,
        Continuity.NEXT,
        Continuity.DUPLICATE,
        Continuity.GAP,
        Continuity.NEXT,
        Continuity.RESTART,
        Continuity.NEXT,
        Continuity.RESTART,
        Continuity.RESTART,  # a life of one message, then another: not a repeat
        Continuity.NEXT,
    ]


def test_without_replays_a_gap_forgets_and_goes_on() -> None:
    bench = Bench(replays=False).live(3, 4, 9, 10, 0)
    assert bench.told == [3, 4, Forget.GAP, 9, 10, Forget.RESTART, 0]
    assert bench.start is None


def test_at_the_start_all_is_asked_for_even_of_an_engine_that_says_nothing() -> None:
    bench = Bench()
    assert bench.start == 0
    assert bench.replay(0).told == [0], "an engine with one message is no new one"
    assert bench.sequencer.heard
    assert bench.start is None


def test_live_messages_wait_for_the_replay_of_those_before_them() -> None:
    bench = Bench().live(3, 4)
    assert (bench.told, bench.sequencer.held) == ([], 2)
    bench.replay(0, 1, 2, 3)
    assert bench.told == [0, 1, 2, 3, 4]
    assert bench.sequencer.held == 0


def test_a_gap_is_mended_from_the_last_message_that_is_known() -> None:
    bench = Bench().replay().live(0, 1, 5)
    assert bench.start == 1
    bench.live(6).replay(1, 2, 3, 4, 5)
    assert bench.told == [0, 1, 2, 3, 4, 5, 6]
    assert bench.sequencer.counts.gaps == 1


def test_a_buffer_that_does_not_reach_the_gap_forgets_and_goes_on_from_there() -> None:
    bench = Bench().replay().live(0, 1, 50).replay(30, *range(31, 51))
    assert bench.told == [0, 1, Forget.GAP, *range(30, 51)]


def test_a_replay_with_a_hole_is_asked_for_again_from_there() -> None:
    bench = Bench().replay().live(0, 9).replay(0, 1, 2, 5, 6)
    assert bench.start == 2
    bench.replay(2, 3, 4, 5, 6, 7, 8, 9)
    assert bench.told == list(range(10))


def test_a_hole_that_stays_is_given_up_after_some_attempts() -> None:
    bench = Bench().replay().live(0, 9)
    for _ in range(ATTEMPTS):
        assert bench.start == 0
        bench.replay(0, 5)
    assert bench.told == [0, Forget.GAP, 9]
    assert bench.start is None


def test_a_replay_that_stops_short_of_what_waits_is_asked_for_again_then_given_up() -> None:
    bench = Bench().replay().live(0, 9)
    for _ in range(ATTEMPTS):
        assert bench.start is not None
        bench.replay(bench.start)
    assert bench.told == [0, Forget.GAP, 9]


def test_a_replay_that_breaks_off_forgets_and_gaps_are_not_mended_for_a_while() -> None:
    bench = Bench().replay().live(0, 5).replay(complete=False).live(9)
    assert bench.told == [0, Forget.GAP, 5, Forget.GAP, 9]
    bench.now = COOLDOWN_S
    assert bench.live(20).start == 9
    assert bench.sequencer.counts.failed_replays == 1


def test_an_engine_that_restarts_while_a_replay_is_wanted_begins_anew() -> None:
    bench = Bench().replay().live(0, 1, 7)
    old = bench.sequencer.wanted
    bench.live(0, 1)
    assert bench.told == [0, 1, Forget.RESTART]
    assert bench.sequencer.wanted is not old, "what comes for the old replay is late"
    assert bench.replay(0, 1).told == [0, 1, Forget.RESTART, 0, 1]


def test_too_many_messages_that_wait_end_the_replay() -> None:
    bench = Bench(max_held=3).replay().live(0, 5, 6, 7)
    assert bench.sequencer.held == 3
    bench.live(8)
    assert bench.told == [0, Forget.GAP, 5, 6, 7, 8]
    assert bench.sequencer.counts.overflows == 1
    assert bench.start is None


def test_too_many_bytes_that_wait_end_the_replay() -> None:
    bench = Bench(max_held_bytes=2).replay().live(0, 5, 6)
    assert bench.told == [0]
    assert bench.live(7).told == [0, Forget.GAP, 5, 6, 7]


def test_a_memory_is_proven_by_the_next_message() -> None:
    bench = Bench(replays=False)
    bench.sequencer.resume(7)
    assert bench.sequencer.unproven
    assert bench.live(8).told == [Proven.PROVEN, 8]


@pytest.mark.parametrize(("seq", "why"), [(9, Forget.GAP), (0, Forget.RESTART)])
def test_a_memory_is_dropped_where_messages_were_missed(seq: int, why: Forget) -> None:
    bench = Bench(replays=False)
    bench.sequencer.resume(7)
    assert bench.live(seq).told == [why, seq]


def test_a_memory_is_proven_by_a_replay_of_its_last_message() -> None:
    bench = Bench()
    bench.sequencer.resume(7)
    assert bench.start == 7
    assert bench.replay(7).told == [Proven.PROVEN]
    assert bench.live(8).told == [Proven.PROVEN, 8]


def test_a_memory_is_proven_by_what_follows_it_and_brought_up_to_date() -> None:
    bench = Bench()
    bench.sequencer.resume(7)
    assert bench.replay(8, 9).told == [Proven.PROVEN, 8, 9]


def test_an_engine_that_knows_nothing_of_the_memorys_last_message_has_begun_anew() -> None:
    bench = Bench()
    bench.sequencer.resume(7)
    assert bench.replay().told == [Forget.RESTART]
    assert not bench.sequencer.unproven


def test_a_memory_that_no_replay_proves_is_dropped() -> None:
    bench = Bench()
    bench.sequencer.resume(7)
    assert bench.replay(complete=False).told == [Forget.GAP]


def test_all_is_told_afresh_once_in_a_while_and_only_from_the_first_message_on() -> None:
    bench = Bench().replay().live(0, 1)
    assert bench.sequencer.tell_afresh()
    assert not bench.sequencer.tell_afresh()
    assert bench.replay(0, 1).told == [0, 1, Forget.AFRESH, 0, 1]
    assert not bench.sequencer.tell_afresh(), "not twice in so short a time"
    bench.now = COOLDOWN_S
    assert bench.sequencer.tell_afresh()
    bench.live(2).replay(1)
    assert bench.told == [0, 1, Forget.AFRESH, 0, 1, 2], "nothing is lost where that fails"
    bench.now = 10 * COOLDOWN_S
    assert not bench.sequencer.tell_afresh(), "the engine no longer has its first message"


def test_a_new_life_asks_for_all_again() -> None:
    bench = Bench().replay().live(0, 1)
    bench.sequencer.forget()
    assert not bench.sequencer.heard
    assert bench.start == 0
    assert bench.replay(0, 1, 2).told[2:] == [0, 1, 2]


@pytest.mark.parametrize("wrong", [{"max_held": 0}, {"max_held_bytes": 0}])
def test_limits_are_positive(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        Sequencer(**wrong)
