"""Durations, sizes and lists as flags spell them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.config.serve import serve_settings
from epp.config.values import listed, seconds, seconds_text, size, size_text
from epp.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("30s", 30.0),
        ("50ms", 0.05),
        ("1m30s", 90.0),
        ("1.5h", 5400.0),
        ("0", 0.0),
        ("2", 2.0),
        ("1us", 1e-6),
        ("1µs", 1e-6),
        (" 3s ", 3.0),
        (".5s", 0.5),
    ],
)
def test_a_duration_is_read_as_go_reads_it(text: str, value: float) -> None:
    assert seconds(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "s", "5 s", "3x", "1s!", "s1"])
def test_what_is_no_duration_is_said_to_be_none(text: str) -> None:
    with pytest.raises(ValueError, match="expected a duration"):
        seconds(text)


@given(st.integers(0, 10**7))
def test_a_written_duration_reads_back(milliseconds: int) -> None:
    value = milliseconds / 1000
    assert seconds(seconds_text(value)) == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("10MiB", 10 << 20),
        ("10Mi", 10 << 20),
        ("25MB", 25_000_000),
        ("4096", 4096),
        ("4096b", 4096),
        ("1.5Ki", 1536),
        ("2G", 2_000_000_000),
    ],
)
def test_a_size_is_read_as_quantities_are(text: str, value: int) -> None:
    assert size(text) == value


@given(st.integers(0, 2**50))
def test_a_written_size_reads_back(value: int) -> None:
    assert size(size_text(value)) == value


def test_values_that_are_no_text_are_left_for_the_settings_to_judge() -> None:
    assert seconds(3) == 3
    assert size(None) is None
    assert listed(5) == 5
    settings = serve_settings({"endpoints_file": "e", "known_models": ["a,b", "", " c "]})
    assert settings.known_models == ("a", "b", "c")


def test_speeds_of_tiers_are_told_by_name() -> None:
    told = serve_settings({"endpoints_file": "e", "tier_speed": ["cpu=200000,DISK=20000"]})
    assert told.tier_speeds() == {"CPU": 200_000.0, "DISK": 20_000.0}
    assert serve_settings({"endpoints_file": "e"}).tier_speeds() == {}


@pytest.mark.parametrize("odd", ["CPU", "CPU=", "=5", "CPU=0", "CPU=-5", "CPU=1e5", "CPU=²"])
def test_a_tier_without_a_speed_is_refused(odd: str) -> None:
    with pytest.raises(ConfigError, match="such as CPU=200000"):
        serve_settings({"endpoints_file": "e", "tier_speed": [odd]})
