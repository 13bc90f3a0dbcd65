"""Equal prompts are counted by endpoint, for a while, and no more of them than have room."""

from epp.framework import EndpointId, PoolId
from epp.state.twins import Twins

ONE, OTHER = (EndpointId(PoolId("p"), f"pod-{number}", 8000) for number in range(2))
PROMPT = (1, 2, 3)


def test_equal_prompts_are_counted_by_the_endpoints_that_they_were_given_to() -> None:
    twins = Twins()
    for endpoint in (ONE, OTHER, ONE):
        twins.sent(PROMPT, endpoint, 5.0)
    assert twins.of(PROMPT, 5.1) == {ONE: 2, OTHER: 1}


def test_prompts_of_the_same_whole_blocks_are_equal_and_longer_ones_are_others() -> None:
    twins = Twins()
    twins.sent(PROMPT, ONE, 5.0)
    assert twins.of((1, 2), 5.0) == {}
    assert twins.of((1, 2, 3, 4), 5.0) == {}


def test_a_prompt_without_a_whole_block_has_no_equals() -> None:
    twins = Twins()
    twins.sent((), ONE, 5.0)
    assert twins.of((), 5.0) == {}
    assert len(twins) == 0


def test_a_request_counts_for_one_span_at_least_and_for_two_at_most() -> None:
    twins = Twins(span_s=1.0)
    twins.sent(PROMPT, ONE, 5.9)
    twins.sent(PROMPT, OTHER, 6.1)
    assert twins.of(PROMPT, 6.99) == {ONE: 1, OTHER: 1}
    assert twins.of(PROMPT, 7.0) == {OTHER: 1}
    assert twins.of(PROMPT, 8.0) == {}


def test_what_came_before_a_pause_is_over_when_the_next_one_comes() -> None:
    twins = Twins(span_s=1.0)
    twins.sent(PROMPT, ONE, 5.0)
    twins.sent(PROMPT, OTHER, 7.5)
    assert twins.of(PROMPT, 7.6) == {OTHER: 1}


def test_counts_that_were_read_do_not_change_afterwards() -> None:
    twins = Twins()
    twins.sent(PROMPT, ONE, 5.0)
    read = twins.of(PROMPT, 5.0)
    twins.sent(PROMPT, ONE, 5.0)
    assert read == {ONE: 1}


def test_at_the_limit_the_prompt_that_came_longest_ago_makes_room() -> None:
    twins = Twins(limit=2)
    for prompt in ((1,), (2,), (1,), (3,)):
        twins.sent(prompt, ONE, 5.0)
    assert len(twins) == 2
    assert twins.of((2,), 5.0) == {}
    assert twins.of((1,), 5.0) == {ONE: 2}
