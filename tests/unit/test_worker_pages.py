"""Pages of several workers as one."""

from prometheus_client.parser import text_string_to_metric_families

from epp.observe.merge import merged

ONE = """# HELP a_total Things.
# TYPE a_total counter
a_total{what="x"} 1.0
a_total{what="y} {z"} 2.0
# HELP b A number.
# TYPE b gauge
b 3.0
"""
TWO = """# HELP b A number.
# TYPE b gauge
b 4.5
# HELP c Only here.
# TYPE c gauge
c{e="1"} NaN
"""


def samples(text: str) -> dict[tuple[str, str], float]:
    return {
        (sample.name + str(sorted(sample.labels.items())), family.type): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_every_series_says_whose_it_is_and_each_family_stands_once() -> None:
    text = merged("worker", {"0": ONE, "1": TWO})
    assert text.count("# TYPE b gauge") == 1
    assert text.count("# HELP b ") == 1
    values = samples(text)
    assert values["a_total[('what', 'x'), ('worker', '0')]", "counter"] == 1.0
    assert values["a_total[('what', 'y} {z'), ('worker', '0')]", "counter"] == 2.0
    assert values["b[('worker', '0')]", "gauge"] == 3.0
    assert values["b[('worker', '1')]", "gauge"] == 4.5
    assert len(values) == 5


def test_a_family_stands_together_whatever_page_has_it_first() -> None:
    lines = merged("worker", {"0": ONE, "1": TWO}).splitlines()
    families = [line.split("{")[0] for line in lines if not line.startswith("#")]
    assert families == sorted(families)


def test_histograms_keep_their_buckets() -> None:
    page = '# TYPE h histogram\nh_bucket{le="+Inf"} 2.0\nh_count 2.0\nh_sum 3.0\n'
    text = merged("worker", {"3": page})
    assert 'h_bucket{worker="3",le="+Inf"} 2.0' in text
    assert 'h_sum{worker="3"} 3.0' in text


def test_no_page_at_all_is_an_empty_one() -> None:
    assert merged("worker", {}).strip() == ""
