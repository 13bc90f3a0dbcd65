"""`epp check`: what a configuration will run, or where it is wrong."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from epp import cli
from epp.config import picker_config

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "tests" / "data" / "picker_configs"
SCHEMA = ROOT / "docs" / "picker-config.schema.json"

Check = Callable[..., str]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Check:
    """What it prints; it has to end with `code`."""

    def check(*arguments: object, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["epp", "check", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert (ended.value.code or 0) == code
        printed = capsys.readouterr()
        return printed.out or printed.err

    return check


def test_it_says_what_will_run_and_who_feeds_whom(check: Check) -> None:
    said = check(SAMPLES / "split.yaml").splitlines()
    assert said[0].endswith("split.yaml can be used.")
    for line in (
        'handler   disagg-profile-handler {"deciders":{"prefill":"prefix-based-pd-decider"}}',
        'decider   prefix-based-pd-decider {"nonCachedTokens":16}',
        "profile   prefill",
        "  filter  prefill-filter",
        "  scorer  2 x prefix-cache-scorer",
        "  picker  max-score-picker",
        "parsers   all, and a pass for unknown paths",
    ):
        assert line in said
    (matches,) = (line for line in said if line.startswith("  prefix-match: "))
    assert matches.startswith("  prefix-match: approx-prefix-cache-producer {")
    assert "-> " in matches
    assert "prefix-cache-scorer" in matches


def test_without_a_file_it_says_what_runs_by_default(check: Check) -> None:
    said = check()
    assert said.startswith("default can be used.")
    assert "profile   decode" in said
    assert "notes" not in said.splitlines()


def test_what_a_rule_puts_in_is_told(check: Check) -> None:
    said = check(SAMPLES / "hermetic.yaml").splitlines()
    assert "  picker  max-score-picker (by default)" in said
    assert "handler   single-profile-handler (by default)" in said


def test_another_name_and_notes_are_shown(check: Check) -> None:
    said = check(SAMPLES / "split-older-names.yaml")
    assert "  filter  decode-pods (by-label) {" in said
    assert "split-older-names.yaml:7:5 'by-label' is deprecated: use label-selector-filter" in said


def test_machines_get_the_same_as_json(check: Check) -> None:
    told: dict[str, Any] = json.loads(check(SAMPLES / "hermetic.yaml", "--json"))
    assert told["usable"] is True
    (profile,) = told["profiles"]
    assert profile["picker"] == {
        "name": "max-score-picker",
        "type": "max-score-picker",
        "stability": profile["picker"]["stability"],
        "parameters": {},
        "added": True,
    }
    weights = {one["name"]: one["weight"] for one in profile["scorers"]}
    assert weights["queue-scorer"] == 1.0
    assert told["handler"]["added"] is True
    assert told["parsers"] == ["openai-parser"]
    data = {one["name"]: one for one in told["data"]}
    assert data["prefix-match"]["from"] == []
    assert data["prefix-match"]["default"]
    assert "prefix-cache-scorer" in data["prefix-match"]["to"]


def test_what_cannot_be_used_ends_with_2_and_its_place(check: Check, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugin: []\n")
    assert check(file, code=2) == (
        f"epp: {file}:3:1 unknown field 'plugin'; did you mean 'plugins'?\n"
    )
    assert json.loads(check(file, "--json", code=2)) == {
        "usable": False,
        "where": f"{file}:3:1",
        "what": "unknown field 'plugin'; did you mean 'plugins'?",
    }


def test_experimental_plugins_are_checked_as_serve_would_be_started(check: Check) -> None:
    file = SAMPLES / "session.alpha.yaml"
    assert "start with --allow-experimental-plugins" in check(file, code=2)
    assert "session-affinity-scorer" in check(file, "--allow-experimental-plugins")


def test_the_shipped_schema_is_that_of_the_code(check: Check) -> None:
    assert SCHEMA.read_text() == picker_config.schema_text(), "epp check --schema > docs/…"
    assert check("--schema") == SCHEMA.read_text()


def test_the_schema_knows_every_field_and_no_other() -> None:
    schema = picker_config.json_schema()
    assert schema["additionalProperties"] is False
    assert {"plugins", "schedulingProfiles", "dataLayer", "flowControl"} <= (
        schema["properties"].keys()
    )
    assert schema["properties"]["parser"]["deprecated"] is True
    plugin = schema["$defs"]["ProfilePlugin"]["properties"]
    assert plugin["weight"]["anyOf"][0] == {"type": "number", "minimum": 0}
