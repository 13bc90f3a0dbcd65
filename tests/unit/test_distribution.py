"""Our histograms look on the metrics page as prometheus_client's do."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from epp.distribution import Distributions

BOUNDS = (0.5, 1, 2.5, 10)


def page(registry: CollectorRegistry) -> list[str]:
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if "_created" not in line]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from((0.1, 0.5, 1.0, 3.0, 11.0)))))
def test_the_page_is_the_same(values: list[tuple[str, float]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    distributions = Distributions("d", "Of values.", ("name",), bounds=BOUNDS, registry=ours)
    histogram = Histogram("d", "Of values.", ("name",), buckets=BOUNDS, registry=theirs)
    for name, value in values:
        distributions.of((name,)).observe(value)
        histogram.labels(name).observe(value)
    assert page(ours) == page(theirs)
