"""Our histograms and counters look on the metrics page as prometheus_client's do."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from epp.distribution import Counts, Distributions

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


def test_labels_are_shown_once_there_is_a_value_and_what_has_none_always() -> None:
    registry = CollectorRegistry()
    plain = Distributions("p", "Of values.", (), bounds=BOUNDS, registry=registry)
    named = Distributions("d", "Of values.", ("name",), bounds=BOUNDS, registry=registry)
    plain.of(())
    named.of(("a",))
    named.of(("b",)).observe(1)
    lines = page(registry)
    assert "p_count 0.0" in lines
    assert 'd_count{name="b"} 1.0' in lines
    assert not any('name="a"' in line for line in lines)


@given(st.lists(st.sampled_from("ab")))
def test_the_page_of_a_counter_is_the_same(names: list[str]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    counts = Counts("c", "Of names.", ("name",), registry=ours)
    counter = Counter("c", "Of names.", ("name",), registry=theirs)
    for name in names:
        counts.of(name).inc()
        counter.labels(name).inc()
    assert page(ours) == page(theirs)
