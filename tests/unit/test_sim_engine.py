"""The engine model step by step, on a clock of its own."""

from collections.abc import Sequence
from typing import Any

import pytest

from epp.sim.engine import Engine
from epp.sim.hashing import Namespace
from epp.sim.kv import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent
from epp.sim.media import Item
from epp.sim.settings import CoreSettings
from epp.sim.submission import (
    ContextOverflowError,
    Ending,
    Output,
    QueueFullError,
    Step,
    Submission,
)
from tests.fakes.cache_model import CacheModel

SETTINGS = CoreSettings(
    block_tokens=4,
    num_blocks=16,
    max_num_seqs=2,
    max_batched_tokens=16,
    max_waiting=3,
    prefill_tokens_per_s=1000.0,
    decode_step_s=0.01,
    batch_growth=0.5,
)


def engine_with(**changes: Any) -> Engine:
    fields = {name: getattr(SETTINGS, name) for name in SETTINGS.__dataclass_fields__}
    return Engine(CoreSettings(**{**fields, **changes}))


def ask(name: str, prompt: Sequence[int], tokens: int = 2, **more: Any) -> Submission:
    return Submission(id=name, prompt=prompt, max_tokens=tokens, **more)


def run(engine: Engine, now: float = 0.0) -> tuple[list[Output], list[KvEvent], float]:
    """Step until idle."""
    outputs: list[Output] = []
    events: list[KvEvent] = []
    step = engine.step(now)
    while True:
        outputs += step.outputs
        events += step.events
        if step.next_at is None:
            return outputs, events, now
        now = step.next_at
        step = engine.step(now)


def stored(events: Sequence[KvEvent]) -> list[BlockStored]:
    return [event for event in events if isinstance(event, BlockStored)]


def test_an_idle_engine_asks_for_no_step() -> None:
    assert engine_with().step(0.0) == Step((), (), None)


def test_a_step_lasts_its_prompt_tokens_and_a_decode_step() -> None:
    engine = engine_with()
    engine.admit(ask("a", range(10)), 0.0)
    assert engine.step(5.0).next_at == pytest.approx(5.0 + 0.01 + 10 / 1000)


def test_a_further_sequence_makes_a_step_mildly_longer() -> None:
    engine = engine_with(max_batched_tokens=64)
    engine.admit(ask("a", range(10), 5), 0.0)
    engine.admit(ask("b", range(100, 110), 5), 0.0)
    due = engine.step(0.0).next_at
    assert due == pytest.approx(0.01 * 1.5 + 20 / 1000)
    assert due is not None
    assert engine.step(due).next_at == pytest.approx(due + 0.01 * 1.5)


def test_a_step_too_early_changes_nothing() -> None:
    engine = engine_with()
    engine.admit(ask("a", range(10)), 0.0)
    due = engine.step(0.0).next_at
    assert due is not None
    assert engine.step(due - 0.001) == Step((), (), due)
    assert [output.id for output in engine.step(due).outputs] == ["a"]


def test_requests_start_in_the_order_of_arrival_and_no_more_than_may_run() -> None:
    engine = engine_with()
    for name in "abc":
        engine.admit(ask(name, [1, 2, 3]), 0.0)
    engine.step(0.0)
    assert (engine.running, engine.waiting) == (2, 1)
    outputs, _, _ = run(engine, 1.0)
    assert [output.id for output in outputs] == ["a", "b", "a", "b", "c", "c"]


def test_a_long_prompt_is_computed_in_chunks_while_others_decode() -> None:
    engine = engine_with()
    engine.admit(ask("short", [1, 2], 20), 0.0)
    step = engine.step(0.0)
    engine.admit(ask("long", range(100, 140), 1), 0.0)
    tokens: list[str] = []
    while "long" not in tokens:
        assert step.next_at is not None
        step = engine.step(step.next_at)
        tokens += [output.id for output in step.outputs]
    # 40 tokens at 15 a step (one of 16 is the other's): the third of its steps brings the first.
    assert tokens == ["short"] * 4 + ["long"]


def test_a_prompt_finds_what_an_earlier_one_left() -> None:
    engine = engine_with()
    engine.admit(ask("a", range(10)), 0.0)
    run(engine)
    engine.admit(ask("b", [*range(8), 77, 78, 79]), 1.0)
    outputs, _, _ = run(engine, 1.0)
    assert {output.cached_tokens for output in outputs} == {8}
    assert engine.counters.prefix_queries == 21
    assert engine.counters.prefix_hits == 8


def test_equal_requests_in_one_batch_share_blocks() -> None:
    engine = engine_with()
    engine.admit(ask("a", range(8)), 0.0)
    engine.admit(ask("b", range(8)), 0.0)
    outputs, events, _ = run(engine)
    assert [output.cached_tokens for output in outputs] == [0, 4, 0, 4]
    assert engine.pool.used == 0
    model = CacheModel()
    model.apply(events)
    assert model.contents() == engine.pool.contents()


def test_the_last_block_of_a_prompt_cached_whole_is_computed_and_stored_again() -> None:
    engine = engine_with(max_model_len=32)
    model = CacheModel()
    for name in "ab":
        engine.admit(ask(name, range(8), 1), 0.0)
        _, events, _ = run(engine)
        model.apply(events)
    assert sorted(model.contents().values()) == [1, 2]
    again = stored(events)
    assert [event.token_ids for event in again] == [[4, 5, 6, 7]]
    assert again[0].parent_block_hash is not None
    engine.evict()
    removed = engine.step(1.0).events
    assert len(removed) == 3
    model.apply(removed)
    assert model.contents() == {}


def test_answered_tokens_are_indexed_when_a_block_fills() -> None:
    engine = engine_with(block_tokens=32, num_blocks=64, max_batched_tokens=512)
    engine.admit(ask("a", range(301), 24), 0.0)
    outputs, events, _ = run(engine)
    prompt, answer = stored(events)
    assert len(prompt.block_hashes) == 9
    assert len(answer.block_hashes) == 1
    assert answer.parent_block_hash == prompt.block_hashes[-1]
    assert answer.token_ids == [*range(288, 301), *(output.token for output in outputs[:19])]


def test_the_last_token_of_an_answer_is_never_indexed() -> None:
    engine = engine_with()
    engine.admit(ask("a", range(6), 2), 0.0)
    _, events, _ = run(engine)
    assert [len(event.block_hashes) for event in stored(events)] == [1]


def test_a_conversation_finds_its_own_answer() -> None:
    engine = engine_with(max_model_len=64, num_blocks=64)
    engine.admit(ask("a", range(6), 12), 0.0)
    outputs, _, _ = run(engine)
    engine.admit(ask("b", [*range(6), *(output.token for output in outputs), 9, 9]), 1.0)
    outputs, _, _ = run(engine, 1.0)
    assert outputs[0].cached_tokens == 16


def test_a_salt_marks_the_first_block_and_shares_with_nobody_else() -> None:
    engine = engine_with()
    events: list[KvEvent] = []
    cached: list[int] = []
    for name, salt in (("a", ""), ("b", "tenant"), ("c", "tenant"), ("d", "other")):
        engine.admit(ask(name, range(9), 1, namespace=Namespace(salt=salt)), 0.0)
        outputs, more, _ = run(engine)
        events += more
        cached.append(outputs[0].cached_tokens)
    assert cached == [0, 0, 8, 0]
    assert [event.extra_keys for event in stored(events)] == [
        [None, None],
        [["tenant"], None],
        [["other"], None],
    ]


def test_an_adapter_marks_every_block() -> None:
    engine = engine_with()
    engine.admit(ask("a", range(9), 1, namespace=Namespace("pirate", "tenant")), 0.0)
    (event,) = stored(run(engine)[1])
    assert event.lora_name == "pirate"
    assert event.extra_keys == [["pirate", "tenant"], ["pirate"]]


def test_an_item_marks_the_blocks_that_it_reaches_into_by_its_name_and_place() -> None:
    def stored_with(name: str, start: int) -> BlockStored:
        engine = engine_with()
        seen = Namespace("pirate", "tenant", (Item("image", name, start, 4),))
        engine.admit(ask("a", range(12), 1, namespace=seen), 0.0)
        (event,) = stored(run(engine)[1])
        return event

    cat, dog, later = stored_with("cat", 2), stored_with("dog", 2), stored_with("cat", 3)
    expected = [["pirate", ("cat", 2), "tenant"], ["pirate", ("cat", -2)], ["pirate"]]
    assert cat.extra_keys == expected
    assert later.extra_keys is not None
    assert later.extra_keys[1] == ["pirate", ("cat", -1)]
    assert len({*cat.block_hashes, *dog.block_hashes, *later.block_hashes}) == 9


def test_an_answer_depends_on_what_was_seen() -> None:
    def said(*names: str) -> list[int]:
        engine = engine_with()
        media = tuple(Item("image", name, 0, 4) for name in names)
        engine.admit(ask("a", range(8), 4, namespace=Namespace(media=media)), 0.0)
        return [output.token for output in run(engine)[0]]

    assert said("cat") == said("cat")
    assert said("cat") != said("dog")


def test_the_oldest_idle_blocks_go_first_and_of_a_prompt_its_tail() -> None:
    engine = engine_with(num_blocks=5, max_model_len=20)
    engine.admit(ask("a", range(9), 1), 0.0)
    (first,) = stored(run(engine)[1])
    engine.admit(ask("b", range(100, 109), 1), 1.0)
    (second,) = stored(run(engine, 1.0)[1])
    engine.admit(ask("c", range(200, 213), 1), 2.0)
    _, events, _ = run(engine, 2.0)
    removed = [event for event in events if isinstance(event, BlockRemoved)]
    # One block is free; three of the four cached ones must go for the four that are needed.
    assert [event.block_hashes[0] for event in removed] == [
        first.block_hashes[1],
        first.block_hashes[0],
        second.block_hashes[1],
    ]


def test_blocks_in_use_are_never_evicted() -> None:
    engine = engine_with()
    engine.admit(ask("a", range(9), 5), 0.0)
    engine.step(0.0)
    assert engine.evict() == 0
    assert not engine.reset_prefix_cache()
    outputs, _, _ = run(engine, 1.0)
    assert len(outputs) == 5


def test_evicting_one_prompt_leaves_the_others() -> None:
    engine = engine_with()
    engine.admit(ask("a", range(9), 1), 0.0)
    engine.admit(ask("b", range(100, 109), 1), 0.0)
    run(engine)
    assert engine.evict(range(8)) == 2
    assert engine.cached_prefix(range(9)) == 0
    assert engine.cached_prefix(range(100, 109)) == 8


def test_a_reset_clears_everything_with_one_event() -> None:
    engine = engine_with()
    engine.admit(ask("a", range(9), 1), 0.0)
    run(engine)
    assert engine.reset_prefix_cache()
    assert engine.step(1.0).events == (AllBlocksCleared(),)
    assert (engine.pool.free, engine.pool.contents()) == (16, {})


def test_without_blocks_the_youngest_gives_way_and_still_answers_the_same() -> None:
    lonely = engine_with(num_blocks=6, max_model_len=24)
    lonely.admit(ask("b", range(100, 108), 12), 0.0)
    expected = [output.token for output in run(lonely)[0]]

    engine = engine_with(num_blocks=6, max_model_len=24)
    engine.admit(ask("a", range(8), 12), 0.0)
    engine.admit(ask("b", range(100, 108), 12), 0.0)
    outputs, events, _ = run(engine)
    assert engine.counters.preemptions > 0
    assert [output.token for output in outputs if output.id == "b"] == expected
    assert [output.index for output in outputs if output.id == "b"] == list(range(12))
    ends = [output.finish for output in outputs if output.finish is not None]
    assert [end.preemptions > 0 for end in ends] == [False, True]
    model = CacheModel()
    model.apply(events)
    assert model.contents() == engine.pool.contents()


def test_nobody_overtakes_a_request_that_gave_way() -> None:
    engine = engine_with(num_blocks=6, max_model_len=24)
    for name, start, tokens in (("a", 0, 12), ("b", 100, 12), ("c", 200, 1)):
        engine.admit(ask(name, range(start, start + 8), tokens), 0.0)
    outputs, _, _ = run(engine)
    assert engine.counters.preemptions > 0
    ends = {output.id: output.finish for output in outputs if output.finish is not None}
    assert ends["a"] is not None
    assert ends["c"] is not None
    # There is room for `c` as soon as `b` gave way, but `b` comes first and needs more.
    assert ends["c"].started >= ends["a"].ended


def test_a_preempted_request_reports_what_it_found_when_it_first_started() -> None:
    engine = engine_with(num_blocks=6, max_model_len=24)
    engine.admit(ask("a", range(8), 12), 0.0)
    engine.admit(ask("b", range(100, 108), 12), 0.0)
    outputs, _, _ = run(engine)
    assert {output.cached_tokens for output in outputs if output.id == "b"} == {0}
    assert engine.counters.prefix_queries == 16


def test_a_request_waits_while_its_prompt_finds_no_room() -> None:
    engine = engine_with(num_blocks=4, max_model_len=16)
    engine.admit(ask("a", range(12), 3), 0.0)
    engine.admit(ask("b", range(100, 112), 3), 0.0)
    engine.step(0.0)
    assert (engine.running, engine.waiting, engine.kv_usage) == (1, 1, 0.75)
    outputs, _, _ = run(engine, 1.0)
    assert [output.id for output in outputs] == ["a"] * 3 + ["b"] * 3


@pytest.mark.parametrize(("tokens", "fits"), [(14, True), (15, False)])
def test_what_can_never_fit_is_refused(tokens: int, fits: bool) -> None:
    engine = engine_with(max_model_len=20)
    if fits:
        engine.admit(ask("a", range(6), tokens), 0.0)
        assert len(run(engine)[0]) == tokens
    else:
        with pytest.raises(ContextOverflowError):
            engine.admit(ask("a", range(6), tokens), 0.0)


def test_a_full_context_fits_into_exactly_as_many_blocks() -> None:
    engine = engine_with(num_blocks=3, max_model_len=12)
    engine.admit(ask("a", range(4), 8), 0.0)
    assert len(run(engine)[0]) == 8


def test_the_waiting_queue_has_an_end() -> None:
    engine = engine_with()
    for name in "abc":
        engine.admit(ask(name, [1]), 0.0)
    with pytest.raises(QueueFullError):
        engine.admit(ask("d", [1]), 0.0)
    assert engine.counters.refused == 1
    engine.step(0.0)
    engine.admit(ask("d", [1]), 0.0)


@pytest.mark.parametrize("bad", [ask("a", []), ask("a", [1], 0)])
def test_a_request_without_prompt_or_answer_is_refused(bad: Submission) -> None:
    with pytest.raises(ValueError, match="needs a prompt"):
        engine_with().admit(bad, 0.0)


def test_a_live_id_cannot_be_used_twice() -> None:
    engine = engine_with()
    engine.admit(ask("a", [1]), 0.0)
    with pytest.raises(ValueError, match="is live"):
        engine.admit(ask("a", [2]), 0.0)


def test_an_aborted_request_leaves_wherever_it_is() -> None:
    engine = engine_with()
    for name in "abc":
        engine.admit(ask(name, range(9), 5), 0.0)
    due = engine.step(0.0).next_at
    assert engine.abort("c")
    assert engine.abort("a")
    assert not engine.abort("a")
    assert due is not None
    assert [output.id for output in engine.step(due).outputs] == ["b"]
    assert engine.abort("b")
    assert run(engine, 1.0)[0] == []
    assert (engine.running, engine.waiting, engine.pool.used) == (0, 0, 0)
    assert engine.counters.ended[Ending.ABORT] == 3


def test_an_answer_depends_on_prompt_variant_and_seed_only() -> None:
    def answer(seed: int = 0, variant: int = 0, prompt: Sequence[int] = (1, 2)) -> list[int]:
        engine = engine_with(seed=seed, hash_seed=seed)
        engine.admit(ask("x", prompt, 8, variant=variant), 0.0)
        return [output.token for output in run(engine)[0]]

    assert answer() == answer()
    answers = (answer(), answer(seed=1), answer(variant=1), answer(prompt=(1, 3)))
    assert len(set(map(tuple, answers))) == 4


def test_hashes_of_the_same_block_differ_with_the_hash_seed() -> None:
    hashes = []
    for seed in (0, 1):
        engine = engine_with(hash_seed=seed)
        engine.admit(ask("a", range(9), 1), 0.0)
        hashes.append(set(stored(run(engine)[1])[0].block_hashes))
    assert not hashes[0] & hashes[1]


def test_a_finish_carries_the_times_of_its_request() -> None:
    engine = engine_with()
    engine.admit(ask("a", range(10), 2, ends_by_itself=True), 1.0)
    outputs, _, ended = run(engine, 2.0)
    finish = outputs[-1].finish
    assert finish is not None
    assert (finish.ending, finish.arrived, finish.started, finish.ended) == (
        Ending.STOP,
        1.0,
        2.0,
        ended,
    )
    assert finish.first_token == pytest.approx(2.0 + 0.01 + 10 / 1000)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("block_tokens", 0),
        ("block_tokens", 4097),
        ("num_blocks", 0),
        ("max_num_seqs", 0),
        ("max_num_seqs", 17),
        ("max_waiting", 0),
        ("max_model_len", 65),
        ("max_model_len", 1),
        ("prefill_tokens_per_s", 0.0),
        ("prefill_tokens_per_s", float("nan")),
        ("decode_step_s", float("inf")),
        ("batch_growth", -0.1),
        ("seed", -1),
        ("hash_seed", 2**64),
    ],
)
def test_no_engine_can_be_like_this(field: str, value: float) -> None:
    with pytest.raises(ValueError, match="must"):
        engine_with(**{field: value})


def cached_elsewhere(prompt: Sequence[int]) -> list[tuple[int, int]]:
    """What another engine, named differently, has cached of a prompt."""
    other = engine_with(hash_seed=7)
    now = 0.0
    other.admit(ask("a", prompt, tokens=1), now)
    step = other.step(now)
    while step.next_at is not None:
        step = other.step(step.next_at)
    return other.prefix_contents(other.hashes_of(prompt))


def test_what_another_engine_has_cached_is_found_like_what_was_computed_here() -> None:
    prompt = list(range(14))
    contents = cached_elsewhere(prompt)
    assert len(contents) == 3
    engine = engine_with()
    assert engine.adopt(prompt, Namespace("", ""), contents) == 3
    assert (engine.cached_prefix(prompt), engine.pool.used) == (12, 0)
    assert engine.adopt(prompt, Namespace("", ""), contents) == 0
    stored = [one for one in engine.step(0.0).events if isinstance(one, BlockStored)]
    assert [len(one.block_hashes) for one in stored] == [3]


def test_without_room_nothing_is_adopted() -> None:
    prompt = list(range(14))
    contents = cached_elsewhere(prompt)
    engine = engine_with(num_blocks=2, max_batched_tokens=8)
    assert engine.adopt(prompt, Namespace("", ""), contents) == 0
    assert engine.cached_prefix(prompt) == 0
