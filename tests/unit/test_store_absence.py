"""What is told of a log that is away: enough to mend it, and not more than once a minute."""

from dataclasses import dataclass

from structlog.testing import capture_logs

from epp.state.store.absence import QUIET_S, Absence


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_log_that_stays_away_is_told_once_a_minute_with_the_reason() -> None:
    clock = Clock()
    absence = Absence(clock, stream=3)
    with capture_logs() as said:
        for _ in range(1000):
            absence.failed("refused")
            clock.now += QUIET_S / 500
    assert [(line["event"], line["reason"], line["for_s"], line["stream"]) for line in said] == [
        ("the log is away", "refused", 0.0, 3),
        ("the log is away", "refused", QUIET_S, 3),
    ]


def test_its_return_is_told_once_with_how_long_it_was_away() -> None:
    clock = Clock()
    absence = Absence(clock)
    with capture_logs() as said:
        absence.answered()
        absence.failed("refused")
        clock.now += 5
        absence.answered()
        absence.answered()
    assert [line["event"] for line in said] == ["the log is away", "the log answers again"]
    assert said[-1]["after_s"] == 5.0


def test_a_log_that_comes_and_goes_is_not_told_each_time() -> None:
    clock = Clock()
    absence = Absence(clock)
    with capture_logs() as said:
        for _ in range(50):
            absence.failed("refused")
            absence.answered()
            clock.now += 1
    assert [line["event"] for line in said] == ["the log is away", "the log answers again"]
