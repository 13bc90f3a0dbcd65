"""The README's commands exist and work: blocks after `<!-- tested -->` are run."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.e2e.conftest import Running

ROOT = Path(__file__).parents[2]
BLOCKS = re.compile(r"<!-- tested -->\s*\n```(?:sh|console)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def commands(text: str) -> list[str]:
    """One command each: continued lines joined, prompts and comments removed."""
    lines = [
        line.removeprefix("$ ")
        for block in BLOCKS.findall(text)
        for line in block.replace("\\\n", " ").splitlines()
    ]
    return [line for line in lines if shlex.split(line, comments=True)]


def substituted(command: str, fleet: Running) -> list[str]:
    """The command on this machine: make only says what it would do, `epp` explains itself, and
    requests go to the fleet of these tests."""
    words = shlex.split(command, comments=True)
    if words[0] == "make":
        return ["make", "-n", *words[1:]]
    if Path(words[0]).name == "epp":
        path = list(words[1:])
        flags = [word for word in path if word.startswith("--")]
        assert all(flag in _help(path) for flag in flags), f"unknown flag in {command!r}"
        return [sys.executable, "-m", "epp.cli", *_plain(path), "--help"]
    if words[0] == "curl":
        moved = {
            "127.0.0.1:8080": urlsplit(fleet.gateway).netloc,
            "127.0.0.1:9091": urlsplit(fleet.map["decisions"]).netloc,
            "127.0.0.1:9090": urlsplit(fleet.map["metrics"]).netloc,
        }
        for written, real in moved.items():
            words = [word.replace(written, real) for word in words]
        return [*words, "--fail", "--silent", "--show-error"]
    pytest.fail(f"a tested block may hold make, epp and curl, not {command!r}")


def _plain(words: list[str]) -> list[str]:
    """The words of a command up to its first flag."""
    return words[: next((i for i, word in enumerate(words) if word.startswith("-")), len(words))]


def _help(words: list[str]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "epp.cli", *_plain(words), "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_the_readme_has_commands_to_test() -> None:
    assert commands((ROOT / "README.md").read_text())


def test_commands_are_found_joined_and_without_prompts() -> None:
    text = (
        "```sh\nrm -rf /\n```\n<!-- tested -->\n```console\n$ make demo  # set up\n\n"
        "# a comment\n$ curl -s x \\\n  -d y\n```\n"
    )
    assert commands(text) == ["make demo  # set up", "curl -s x    -d y"]


def test_every_tested_command_of_the_readme_works(fleet: Running) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    for command in commands((ROOT / "README.md").read_text()):
        done = subprocess.run(
            substituted(command, fleet),
            cwd=ROOT,
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
