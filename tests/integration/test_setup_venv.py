"""What `make setup` says when it cannot help itself."""

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "setup-venv"
NAMES = ("python3", "python3.11", "python3.12", "python3.13", "python3.14")


def setup(tmp_path: Path, python: str) -> subprocess.CompletedProcess[str]:
    """Run it where every Python, pip and uv is this shell script."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in (*NAMES, "uv"):
        program = programs / name
        program.write_text(f"#!/bin/sh\n{python}\n")
        program.chmod(0o755)
    return subprocess.run(
        ["/bin/sh", SCRIPT, tmp_path / "venv"],
        env={"PATH": f"{programs}:/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("python", "says"),
    [
        ("exit 1", "Python 3.11 or newer is needed"),
        ('[ "$1" = -c ]', "apt install python3-venv"),
    ],
)
def test_what_to_install_is_said_in_one_line(tmp_path: Path, python: str, says: str) -> None:
    done = setup(tmp_path, python)
    assert done.returncode == 1
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "venv").exists()
