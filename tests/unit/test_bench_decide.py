"""`epp bench decide` runs as documented; what it measures is for people to read."""

import json
from pathlib import Path

import pytest

from epp.commands.decide import SIZES, bench

PAGE = Path(__file__).parents[2] / "docs" / "performance.md"


def test_the_curve_is_told_as_text_and_as_json() -> None:
    told = bench([3, 40], prompt_tokens=200, decisions=20, config={}, as_json=False)
    lines = told.splitlines()
    assert "200 prompt tokens, 20 decisions of each size" in lines[0]
    assert [line.split()[0] for line in lines[3:]] == ["3", "40"]
    read = json.loads(bench([3], prompt_tokens=200, decisions=20, config={}, as_json=True))
    (row,) = read["cpu_us"]
    assert row["endpoints"] == 3
    for part in ("choosing", "all_of_it"):
        assert 0 < row[part]["least"] <= row[part]["median"] <= row[part]["p90"]


@pytest.mark.parametrize("size", SIZES)
def test_the_page_has_a_row_of_each_size(size: int) -> None:
    assert f"\n| {size} | " in PAGE.read_text()
