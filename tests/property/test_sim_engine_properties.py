"""What holds for the engine model under any order of operations."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from epp.sim.engine import Engine
from epp.sim.hashing import Namespace
from epp.sim.settings import CoreSettings
from epp.sim.submission import Output, Step, Submission
from tests.fakes.cache_model import CacheModel

SETTINGS = CoreSettings(
    block_tokens=4,
    num_blocks=12,
    max_num_seqs=3,
    max_batched_tokens=10,
    max_waiting=6,
    max_model_len=40,
)
# Few heads and tails, so that prompts share prefixes in every way.
prompts = st.builds(
    lambda head, length, tail: [*range(head, head + length), *tail],
    st.sampled_from([0, 1000]),
    st.integers(0, 20),
    st.lists(st.integers(7, 9), min_size=1, max_size=6),
)
namespaces = st.builds(Namespace, st.sampled_from(["", "pirate"]), st.sampled_from(["", "t"]))
submissions = st.builds(
    lambda prompt, tokens, namespace, variant: Submission(
        id="", prompt=prompt, max_tokens=tokens, namespace=namespace, variant=variant
    ),
    prompts,
    st.integers(1, 14),
    namespaces,
    st.integers(0, 1),
)


def answer_alone(submission: Submission) -> list[int]:
    """The answer of an engine that does nothing else."""
    engine = Engine(replace(SETTINGS, num_blocks=64, max_batched_tokens=64))
    engine.admit(submission, 0.0)
    return [output.token for output in run_out(engine, 0.0)]


def run_out(engine: Engine, now: float) -> list[Output]:
    step = engine.step(now)
    outputs = list(step.outputs)
    while step.next_at is not None:
        step = engine.step(step.next_at)
        outputs += step.outputs
    return outputs


class EngineMachine(RuleBasedStateMachine):
    """Any order of requests, leavings, evictions and steps."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = Engine(SETTINGS)
        self.model = CacheModel()
        self.now = 0.0
        self.due: float | None = None
        self.live: dict[str, Submission] = {}
        self.answers: dict[str, list[int]] = {}
        self.number = 0

    @precondition(lambda self: self.engine.waiting < SETTINGS.max_waiting)
    @rule(submission=submissions)
    def admit(self, submission: Submission) -> None:
        self.number += 1
        submission = replace(submission, id=str(self.number))
        self.engine.admit(submission, self.now)
        self.live[submission.id] = submission
        self.answers[submission.id] = []

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.live)))
        assert self.engine.abort(name)
        del self.live[name]

    @rule(late=st.floats(0, 1))
    def step(self, late: float) -> None:
        if self.due is not None:
            self.now = self.due + late
        self.take(self.engine.step(self.now))

    @rule()
    def step_too_early(self) -> None:
        if self.due is not None and self.due > self.now:
            assert self.engine.step(self.now) == Step((), (), self.due)

    @rule()
    def evict_all(self) -> None:
        self.engine.evict()
        assert self.engine.pool.cached == 0

    @rule(prompt=prompts, namespace=namespaces)
    def evict_prompt(self, prompt: list[int], namespace: Namespace) -> None:
        self.engine.evict(prompt, namespace)

    @rule()
    def reset(self) -> None:
        done = self.engine.reset_prefix_cache()
        assert done == (self.engine.pool.used == 0)

    def take(self, step: Step) -> None:
        self.due = step.next_at
        self.model.apply(step.events)
        for output in step.outputs:
            submission = self.live[output.id]
            answer = self.answers[output.id]
            assert output.index == len(answer)
            assert output.cached_tokens < len(submission.prompt)
            assert output.cached_tokens % SETTINGS.block_tokens == 0
            answer.append(output.token)
            if output.finish is not None:
                assert answer == answer_alone(submission)
                del self.live[output.id]

    @invariant()
    def blocks_are_conserved(self) -> None:
        pool = self.engine.pool
        assert pool.used + pool.cached + pool.free == pool.total
        assert min(pool.used, pool.cached, pool.free) >= 0

    @invariant()
    def events_tell_exactly_what_is_cached(self) -> None:
        self.model.apply(self.engine.pool.take_events())
        assert self.model.contents() == self.engine.pool.contents()

    @invariant()
    def no_more_run_than_may(self) -> None:
        assert self.engine.running <= SETTINGS.max_num_seqs
        assert self.engine.running + self.engine.waiting == len(self.live)

    def teardown(self) -> None:
        for _ in range(10_000):
            self.take(self.engine.step(self.due if self.due is not None else self.now))
            if self.due is None:
                break
        assert not self.live, "a request never ended"
        assert self.engine.pool.used == 0
        self.events_tell_exactly_what_is_cached()


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.lists(st.tuples(prompts, st.sampled_from(["", "t"])), min_size=1, max_size=8))
def test_cached_tokens_are_what_the_events_before_the_request_told(
    asked: list[tuple[list[int], str]],
) -> None:
    engine = Engine(SETTINGS)
    model = CacheModel()
    for name, (prompt, salt) in enumerate(asked):
        # The last token of a prompt is computed in any case.
        expected = model.cached_tokens(prompt[:-1], SETTINGS.block_tokens, salt)
        namespace = Namespace(salt=salt)
        engine.admit(
            Submission(id=str(name), prompt=prompt, max_tokens=3, namespace=namespace), 0.0
        )
        step = engine.step(float(name))
        model.apply(step.events)
        found = set()
        while step.next_at is not None:
            step = engine.step(step.next_at)
            model.apply(step.events)
            found |= {output.cached_tokens for output in step.outputs}
        assert found == {expected}
