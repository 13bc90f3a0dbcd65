"""Which `traceparent` is a place in a trace, and what is told to whoever comes next."""

import random

import pytest

from epp.tracing.context import SpanContext, fresh, read

TRACE, SPAN = "a" * 31 + "1", "b" * 16


@pytest.mark.parametrize(
    ("value", "flags"),
    [
        (f"00-{TRACE}-{SPAN}-01", 1),
        (f"00-{TRACE}-{SPAN}-00", 0),
        (f"00-{TRACE}-{SPAN}-03", 3),
        (f" 00-{TRACE}-{SPAN}-01\t", 1),
        (f"cc-{TRACE}-{SPAN}-01", 1),
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", 1),
    ],
)
def test_a_place_in_a_trace_is_read_in_every_version(value: str, flags: int) -> None:
    assert read([value]) == SpanContext(TRACE, SPAN, flags)


@pytest.mark.parametrize(
    "values",
    [
        [],
        [""],
        [f"00-{TRACE}-{SPAN}-01"] * 2,
        [f"00-{TRACE}-{SPAN}-01-more"],
        [f"cc-{TRACE}-{SPAN}-01.more"],
        [f"ff-{TRACE}-{SPAN}-01"],
        [f"00-{TRACE.upper()}-{SPAN}-01"],
        [f"00-{'0' * 32}-{SPAN}-01"],
        [f"00-{TRACE}-{'0' * 16}-01"],
        [f"00-{TRACE[1:]}-{SPAN}-01"],
        [f"00-{TRACE}-{SPAN}-1"],
        [f"00-{TRACE}-{SPAN}-zz"],
        [f"00-{TRACE}-{SPAN}"],
        [f"00-{TRACE}-{SPAN}-01\n"],
    ],
)
def test_whatever_else_it_says_is_no_trace(values: list[str]) -> None:
    assert read(values) is None


def test_what_is_told_on_is_another_span_of_the_same_trace() -> None:
    client = SpanContext(TRACE, SPAN, 3)
    child = client.child(random.Random(1))
    assert (child.trace_id, child.flags) == (TRACE, 3)
    assert child.span_id != SPAN
    assert read([child.header]) == child


def test_of_fresh_traces_the_share_is_sampled() -> None:
    rng = random.Random(1)
    made = [fresh(rng, 0.25) for _ in range(4000)]
    assert len({one.trace_id for one in made}) == len({one.span_id for one in made}) == 4000
    assert all(read([one.header]) == one for one in made)
    assert 900 < sum(one.sampled for one in made) < 1100
    assert not any(fresh(rng, 0.0).sampled for _ in range(100))
    assert all(fresh(rng, 1.0).sampled for _ in range(100))


def test_no_id_is_all_zeros_whatever_chance_says() -> None:
    class Zeros(random.Random):
        def getrandbits(self, _: int, /) -> int:
            return 0

    one = fresh(Zeros(), 1.0)
    assert read([one.header]) == one
