"""What a gateway says of a request in headers, and what is not believed."""

import pytest

from epp import protocol
from epp.request.hints import MAX_TEXT, Hints, read

MODEL, OBJECTIVE, FAIRNESS = protocol.MODEL_REWRITE, protocol.OBJECTIVE, protocol.FAIRNESS_ID


def test_nothing_said_is_nothing_ignored() -> None:
    assert read({":path": "/", "model": "x"}) == Hints("", "", "default-flow", ())


def test_each_header_is_read_under_either_of_its_names_and_the_first_counts() -> None:
    for place in (0, 1):
        said = {MODEL[place]: " m ", OBJECTIVE[place]: "gold", FAIRNESS[place]: "tenant"}
        assert read(said) == Hints("m", "gold", "tenant", ())
    assert read({MODEL[0]: "first", MODEL[1]: "second"}).model == "first"


@pytest.mark.parametrize("value", ["a,b", "x" * (MAX_TEXT + 1), "é", "a\x00", "a\nb"])
def test_a_text_that_cannot_be_used_counts_as_not_said(value: str) -> None:
    said = read({MODEL[0]: value, MODEL[1]: "other", OBJECTIVE[0]: value, FAIRNESS[0]: value})
    assert said == Hints("", "", "default-flow", ("model-rewrite", "objective", "fairness-id"))


def test_the_longest_text_is_read() -> None:
    assert read({MODEL[0]: "m" * MAX_TEXT}).model == "m" * MAX_TEXT


@pytest.mark.parametrize("value", ["1", "0.5", "1e3", " 20 ", "+7"])
def test_a_time_is_any_finite_number_above_zero(value: str) -> None:
    said = read({protocol.SLO_TTFT_MS[1]: value, protocol.SLO_TPOT_MS[0]: value})
    assert said.ignored == ()
    assert said.slo_ttft_s == said.slo_tpot_s == float(value) / 1000.0


@pytest.mark.parametrize("value", ["", "1_000", "0x10", "inf", "-inf", "-0", "one"])
def test_what_is_no_time_is_ignored(value: str) -> None:
    said = {protocol.SLO_TTFT_MS[0]: value, protocol.SLO_TPOT_MS[1]: value}
    assert read(said).ignored == ("slo-ttft", "slo-tpot")
    assert read(said).slo_ttft_s is read(said).slo_tpot_s is None
