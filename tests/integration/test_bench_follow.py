"""`epp bench follow` measures what it says, at a small size."""

import json

from typer.testing import CliRunner

from epp.cli import app
from tests.fakes.redis_server import running


def test_following_a_few_engines_is_measured() -> None:
    with running() as redis:
        options = ["--endpoints", "4", "--keys-per-s", "4000", "--seconds", "0.5", "--json"]
        result = CliRunner().invoke(app, ["bench", "follow", redis.url, *options])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert found["records_per_s"] > 0
    assert found["keys_per_s"] > found["records_per_s"]
    assert 0 < found["routable_p50_s"] <= found["routable_p99_s"]
    assert 0 < found["decision_p50_ms"] <= found["decision_p99_ms"]
    assert found["replica_us"] > 0
