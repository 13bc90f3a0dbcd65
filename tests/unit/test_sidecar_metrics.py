"""The sidecar's metrics and what is written about them."""

from pathlib import Path

from prometheus_client import generate_latest

from sidecar.metrics import Metrics, page

DOCS = Path(__file__).parents[2] / "docs" / "sidecar-metrics.md"


def test_the_documented_table_is_the_one_in_the_code() -> None:
    assert DOCS.read_text() == page(), "write sidecar.metrics.page() to docs/sidecar-metrics.md"


def test_every_metric_is_documented_and_every_documented_one_exists() -> None:
    metrics = Metrics()
    text = generate_latest(metrics.registry).decode()
    exposed = {line.split()[2] for line in text.splitlines() if line.startswith("# HELP")}
    names = {row.name for row in metrics.rows()}
    assert {name for name in exposed if not name.endswith("_created")} == names
    assert len(names) == len(metrics.rows())
