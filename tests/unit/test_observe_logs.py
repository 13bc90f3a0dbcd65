"""Log lines go to the stderr of the moment, without secrets."""

import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest
import structlog

from epp.observe import logs


@pytest.fixture(autouse=True)
def _defaults() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def test_a_line_goes_to_the_stderr_of_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = io.StringIO()
    monkeypatch.setattr(sys, "stderr", gone)
    logs.configure("info", "json")
    log = structlog.get_logger("one")
    log.info("first")
    gone.close()
    here = io.StringIO()
    monkeypatch.setattr(sys, "stderr", here)
    log.info("second", number=2)
    line = json.loads(here.getvalue())
    assert (line["event"], line["number"], line["level"]) == ("second", 2, "info")


def test_secrets_are_hidden_by_the_names_of_their_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    here = io.StringIO()
    monkeypatch.setattr(sys, "stderr", here)
    logs.configure("debug", "json")
    structlog.get_logger("two").debug("claim", token="t0p", redis_url="redis://u:p@h", pool="p")
    assert "t0p" not in here.getvalue()
    assert "redis://" not in here.getvalue()
    assert json.loads(here.getvalue())["pool"] == "p"


@pytest.mark.parametrize("form", ["text", "json"])
def test_people_are_not_told_of_fields_without_a_value(
    monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    here = io.StringIO()
    monkeypatch.setattr(sys, "stderr", here)
    logs.configure("info", form)
    structlog.get_logger(form).info("serving", grpc=9002, state=None, left=0)
    assert ("state" in here.getvalue()) == (form == "json")
    assert "left" in here.getvalue()


def test_lines_below_the_level_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    here = io.StringIO()
    monkeypatch.setattr(sys, "stderr", here)
    logs.configure("warning", "text")
    structlog.get_logger("three").info("quiet")
    assert here.getvalue() == ""


QUOTED = "".join(("qu", "oted"))
"""In no line of the source, which tracebacks do show."""


def failing() -> None:
    try:
        raise ValueError(QUOTED)
    except ValueError as cause:
        raise ExceptionGroup(QUOTED, [KeyError(QUOTED)]) from cause


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_failure_is_told_by_its_kind_and_place(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = io.StringIO()
    monkeypatch.setattr(sys, "stderr", here)
    logs.configure("info", form)
    for log in (structlog.get_logger("four"), logging.getLogger("five")):
        try:
            failing()
        except ExceptionGroup:
            log.exception("failed")
    text = here.getvalue()
    assert QUOTED not in text
    for kind in ("ExceptionGroup", "KeyError", "ValueError", "in failing"):
        assert text.count(kind) >= 2, kind


def test_at_level_debug_a_failure_is_told_in_its_own_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = io.StringIO()
    monkeypatch.setattr(sys, "stderr", here)
    logs.configure("debug", "json")
    try:
        failing()
    except ExceptionGroup:
        structlog.get_logger("six").exception("failed")
    assert QUOTED in here.getvalue()


def test_a_circle_of_causes_ends() -> None:
    first, second = ValueError("a"), KeyError("b")
    first.__cause__, second.__cause__ = second, first
    assert logs.without_words((ValueError, first, None)) == "ValueError\nKeyError"
    assert logs.without_words((None, None, None)) == ""


def test_a_logger_that_has_written_follows_a_later_set_up() -> None:
    """Loggers stand at module level: one that kept its first set-up would keep it for ever."""
    logs.configure("info", "json")
    log = structlog.get_logger("seven")
    log.info("first")
    structlog.reset_defaults()
    with structlog.testing.capture_logs() as seen:
        log.info("second")
    assert [line["event"] for line in seen] == ["second"]
