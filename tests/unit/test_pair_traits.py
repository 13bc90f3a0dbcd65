"""What two engines must have in common."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.trust.traits import Traits, difference, read

PAGES = Path(__file__).parents[1] / "data" / "vllm-0.32.0"
ALL = Traits(version="0.32.0", model="org/m", block_size="32", dtype="auto", layout="HND")
VERSION = b'{"version":"0.32.0"}'
MODELS = json.dumps(
    {"data": [{"id": "lora", "root": "x", "parent": "m"}, {"id": "m", "root": "org/m"}]}
).encode()


def test_a_real_engines_pages_are_read() -> None:
    page = (PAGES / "metrics_P_after_failures_0.32.0.txt").read_bytes()
    assert read(VERSION, MODELS, page) == replace(ALL, layout=None)


@pytest.mark.parametrize("name", ["version", "model", "block_size", "dtype", "layout"])
def test_each_difference_has_its_reason_and_what_is_not_told_is_none(name: str) -> None:
    assert difference(ALL, ALL) is None
    reason = f"pair-{name.replace('_', '-')}"
    assert difference(ALL, replace(ALL, **{name: "other"})) == reason
    assert difference(ALL, replace(ALL, **{name: None})) is None
    assert difference(replace(ALL, **{name: None}), ALL) is None


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[]", b"<html>", b'{"version":5,"data":[{}]}', b"\xff"]
)
def test_what_is_no_page_tells_nothing(text: bytes) -> None:
    assert read(text, text, text) == Traits()


@given(st.binary(max_size=200))
def test_no_page_breaks_the_reader(text: bytes) -> None:
    page = b"vllm:cache_config_info{" + text + b"} 1.0"
    assert isinstance(read(text, text, page), Traits)
