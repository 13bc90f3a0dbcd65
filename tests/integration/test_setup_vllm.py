"""What `make setup-vllm` says where real engines cannot be had."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "setup-vllm"
CUDA = {"install": [{"metadata": {"version": "2.13.0", "requires_dist": ["nvidia-cudnn-cu13==9"]}}]}


def setup(
    venv: Path, python: str, machine: str = "Linux x86_64"
) -> "subprocess.CompletedProcess[str]":
    """Run it where the environment's Python, and `uname`, are shell scripts."""
    programs = venv / "bin"
    programs.mkdir(parents=True)
    for name, script in {"python": python, "uname": f"echo {machine}"}.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    return subprocess.run(
        ["/bin/sh", SCRIPT, venv, sys.executable],
        env={"PATH": f"{programs}:/usr/bin:/bin"},
        cwd=venv,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def pip(*, dry_run: str) -> str:
    """A Python whose pip does this when asked what would be installed; `$8` is the report."""
    return (
        f'case "$*" in *--version*) ;; *--dry-run*) {dry_run} ;; '
        f'*"pip install"*) echo installed >&2; exit 9 ;; *) exec {sys.executable} "$@" ;; esac'
    )


@pytest.mark.parametrize(
    ("dry_run", "says"),
    [
        (f"echo '{json.dumps(CUDA)}' >torch.json", "offers one with CUDA"),
        ("echo 'ERROR: No matching distribution found for torch' >&2; exit 1", "No matching"),
    ],
)
def test_without_a_build_of_torch_for_cpus_one_line_says_so_before_anything_is_fetched(
    tmp_path: Path, dry_run: str, says: str
) -> None:
    done = setup(tmp_path / "venv", pip(dry_run=dry_run))
    assert done.returncode == 1
    assert "the CPU build of torch 2.13.0 cannot be had" in done.stderr
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_other_machines_are_told_at_once(tmp_path: Path) -> None:
    done = setup(tmp_path / "venv", "exit 1", "Darwin arm64")
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.endswith("cannot be made: vLLM for CPUs comes as a wheel for Linux on x86_64 only")
