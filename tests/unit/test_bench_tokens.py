"""`epp bench tokens` runs as documented; what it measures is for people to read."""

import json
from pathlib import Path

from typer.testing import CliRunner

from epp.cli import app
from tests.fakes.tokenizers import write


def test_both_chats_are_told_as_text_and_as_json(tmp_path: Path) -> None:
    folder = str(write(tmp_path))
    told = CliRunner().invoke(app, ["bench", "tokens", folder, "--requests", "5"])
    lines = told.stdout.splitlines()
    assert "fastokens, 5 requests" in lines[0]
    assert [line.split()[:2] for line in lines[2:]] == [["new", "chat"], ["tenth", "turn"]]
    told = CliRunner().invoke(app, ["bench", "tokens", folder, "--requests", "5", "--json"])
    costs = json.loads(told.stdout)["cpu_us"]
    assert [cost["name"] for cost in costs] == ["new chat", "tenth turn"]
    for cost in costs:
        assert cost["parsing"] > 0
        assert 0 < cost["least"] <= cost["median"] < cost["reference"]
    assert costs[1]["tokens"] > 10 * costs[0]["tokens"]
