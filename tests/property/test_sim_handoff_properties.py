"""What holds for two engine models that hand over KV, under any order of events and misuse."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from epp.sim.engine import Engine
from epp.sim.settings import CoreSettings
from epp.sim.submission import Pull, Step, Submission
from epp.sim.transfer import Offer, PullAsk, Transfer, read_params
from tests.fakes.cache_model import CacheModel

SETTINGS = CoreSettings(
    block_tokens=4,
    num_blocks=14,
    max_num_seqs=3,
    max_batched_tokens=10,
    max_waiting=8,
    max_model_len=40,
    lease_s=2.0,
    pull_setup_s=0.01,
    pull_tokens_per_s=1000.0,
)
prompts = st.builds(
    lambda head, length, tail: [*range(head, head + length), *tail],
    st.sampled_from([0, 1000]),
    st.integers(0, 18),
    st.lists(st.integers(7, 9), min_size=1, max_size=5),
)


seldom = st.sampled_from([False] * 9 + [True])


def answer_alone(prompt: list[int], tokens: int) -> list[int]:
    """The answer of an engine that does nothing else."""
    engine = Engine(replace(SETTINGS, num_blocks=64, max_batched_tokens=64))
    engine.admit(Submission(id="x", prompt=prompt, max_tokens=tokens), 0.0)
    return run_out(engine)


def run_out(engine: Engine) -> list[int]:
    """Step until idle; returns the tokens that came."""
    step, found = engine.step(0.0), list[int]()
    while step.next_at is not None:
        step = engine.step(step.next_at)
        found += [output.token for output in step.outputs]
    return found


def ask_for(offer: Offer) -> PullAsk:
    """The offer as a decode engine reads it from a request."""
    params = offer.params(engine_id="p", host="127.0.0.1", port=5600)
    ask = read_params(params).pull
    assert ask is not None
    return ask


@dataclass
class Side:
    """One engine in virtual time, and the reader of its events."""

    engine: Engine
    due: float | None = None

    def __post_init__(self) -> None:
        self.model = CacheModel()

    def step(self, now: float) -> Step:
        step = self.engine.step(now)
        self.due = step.next_at
        self.model.apply(step.events)
        return step


class HandoffMachine(RuleBasedStateMachine):
    """A prefill and a decode engine, and a wire that takes its time, in virtual time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.number = 0
        self.prefill = Side(Engine(SETTINGS))
        self.decode = Side(Engine(SETTINGS))
        self.prompts: dict[str, list[int]] = {}
        """Of live prefill requests."""
        self.offers: list[tuple[Offer, list[int]]] = []
        self.live: dict[str, Submission] = {}
        self.answers: dict[str, list[int]] = {}
        self.wire: list[tuple[float, Pull]] = []
        self.misused = False
        """Whether KV may have been pulled that was not what it should be."""
        self.issued = self.read = self.returned = 0

    def name(self) -> str:
        self.number += 1
        return str(self.number)

    @precondition(lambda self: self.prefill.engine.waiting < SETTINGS.max_waiting)
    @rule(prompt=prompts, tokens=st.sampled_from([1, 1, 1, 3]), offer=st.booleans())
    def ask_prefill(self, prompt: list[int], tokens: int, offer: bool) -> None:
        name = self.name()
        submission = Submission(
            id=name, prompt=prompt, max_tokens=tokens, transfer=Transfer(offer=offer)
        )
        self.prefill.engine.admit(submission, self.now)
        self.prompts[name] = prompt

    @precondition(lambda self: self.offers and self.decode.engine.waiting < SETTINGS.max_waiting)
    @rule(
        data=st.data(),
        tokens=st.integers(1, 6),
        keep=st.sampled_from([False] * 9 + [True]),
        other=prompts,
    )
    def ask_decode(self, data: st.DataObject, tokens: int, keep: bool, other: list[int]) -> None:
        """Honest, or with parameters that are kept for a second use, or for another prompt."""
        index = data.draw(st.integers(0, len(self.offers) - 1))
        offer, prompt = self.offers[index]
        if keep:
            self.misused = True
            if len(other) <= len(prompt):
                prompt = other
        else:
            self.offers.pop(index)
        # A prefill that answers more than one token may fill a block too many, and the decode
        # engine counts from the end.
        self.misused |= len(offer.blocks) > -(-len(prompt) // SETTINGS.block_tokens)
        transfer = Transfer(pull=ask_for(offer))
        self.admit_decode(prompt, tokens, transfer)

    @precondition(lambda self: self.decode.engine.waiting < SETTINGS.max_waiting)
    @rule(prompt=prompts, tokens=st.integers(1, 6))
    def ask_decode_plain(self, prompt: list[int], tokens: int) -> None:
        self.admit_decode(prompt, tokens, Transfer())

    def admit_decode(self, prompt: list[int], tokens: int, transfer: Transfer) -> None:
        submission = Submission(id=self.name(), prompt=prompt, max_tokens=tokens, transfer=transfer)
        self.decode.engine.admit(submission, self.now)
        self.live[submission.id] = submission
        self.answers[submission.id] = []

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def leave_decode(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.live)))
        assert self.decode.engine.abort(name)
        del self.live[name]

    @precondition(lambda self: self.prompts)
    @rule(data=st.data())
    def leave_prefill(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.prompts)))
        assert self.prefill.engine.abort(name)
        del self.prompts[name]

    @rule(turns=st.integers(1, 12), late=st.floats(0, 1))
    def run(self, turns: int, late: float) -> None:
        """Some steps; leases end only by their own rule, lest nothing be pulled in time."""
        for _ in range(turns):
            times = [side.due for side in (self.prefill, self.decode) if side.due is not None]
            times += [at for at, _ in self.wire]
            soon = [at for at in times if at <= self.now + 0.2]
            self.now = max(self.now, min(soon, default=self.now) + late * 0.01)
            self.turn()

    @rule()
    def let_leases_end(self) -> None:
        self.now += SETTINGS.lease_s
        self.turn()

    @rule()
    def beat(self) -> None:
        wanted = [ask.request_id for ask in self.decode.engine.wanted_elsewhere()]
        self.prefill.engine.pins.beat(wanted, self.now)

    @rule(which=st.booleans())
    def evict(self, which: bool) -> None:
        (self.prefill if which else self.decode).engine.evict()

    def turn(self) -> None:
        """One step of both engines, and of the wire between them."""
        for output in self.prefill.step(self.now).outputs:
            if output.finish is not None:
                prompt = self.prompts.pop(output.id)
                if output.finish.offer is not None:
                    self.issued += 1
                    self.offers.append((output.finish.offer, prompt))
        for at, pull in [one for one in self.wire if one[0] <= self.now]:
            self.wire.remove((at, pull))
            self.deliver(pull)
        step = self.decode.step(self.now)
        self.wire += [(self.now + pull.duration_s, pull) for pull in step.pulls]
        for ask in step.returns:
            self.returned += ask.request_id in self.prefill.engine.pins
            self.prefill.engine.pins.hand_back(ask.request_id)
        for output in step.outputs:
            self.answers[output.id].append(output.token)
            if output.finish is not None:
                submission = self.live.pop(output.id)
                if not self.misused:
                    right = answer_alone(list(submission.prompt), submission.max_tokens)
                    assert self.answers[output.id] == right

    def deliver(self, pull: Pull) -> None:
        pins = self.prefill.engine.pins
        if pull.ask.request_id in pins:
            self.read += 1
        else:
            self.misused = True
        self.decode.engine.pulled(pull, pins.read(pull.ask.request_id, pull.blocks))

    @invariant()
    def pins_are_conserved(self) -> None:
        pins = self.prefill.engine.pins
        count = pins.counters
        assert (count.issued, count.pulled, count.returned) == (
            self.issued,
            self.read,
            self.returned,
        )
        assert len(pins) == count.issued - count.pulled - count.returned - count.expired
        assert (pins.next_at is None) == (len(pins) == 0)
        if not self.prefill.engine.running:
            assert (self.prefill.engine.pool.used == 0) == (len(pins) == 0)

    @invariant()
    def blocks_and_events_agree(self) -> None:
        for side in (self.prefill, self.decode):
            pool = side.engine.pool
            assert pool.used + pool.cached + pool.free == pool.total
            side.model.apply(pool.take_events())
            assert side.model.contents() == pool.contents()

    @invariant()
    def every_request_is_somewhere(self) -> None:
        engine = self.decode.engine
        assert engine.dead is None
        assert engine.running + engine.waiting == len(self.live)

    def teardown(self) -> None:
        for _ in range(10_000):
            sides = (self.prefill, self.decode)
            times = [side.due for side in sides if side.due is not None]
            times += [at for at, _ in self.wire]
            self.now = max([self.now, *([min(times)] if times else [])])
            self.turn()
            if not self.wire and all(side.due is None for side in sides):
                break
        assert not self.live, "a request never ended"
        for side in (self.prefill, self.decode):
            assert side.engine.pool.used == 0
        self.pins_are_conserved()


TestHandoffMachine = HandoffMachine.TestCase
TestHandoffMachine.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)


def handed_over(
    prompt: list[int],
    tokens: int,
    *,
    cached: int = 0,
    spoil: Callable[[Engine, Offer], None] = lambda engine, offer: None,
) -> list[int]:
    """The answer of a decode engine that pulls, and has so many tokens of the prompt cached.

    `spoil` does something to the prefill engine before.
    """
    prefill, decode = Engine(SETTINGS), Engine(replace(SETTINGS, hash_seed=5))
    if cached:
        decode.admit(Submission(id="c", prompt=prompt[:cached], max_tokens=1), 0.0)
        run_out(decode)
    computed = decode.counters.computed_prompt_tokens
    first = Submission(id="p", prompt=prompt, max_tokens=1, transfer=Transfer(offer=True))
    prefill.admit(first, 0.0)
    step = prefill.step(0.0)
    while not step.outputs:
        assert step.next_at is not None
        step = prefill.step(step.next_at)
    finish = step.outputs[0].finish
    assert finish is not None
    assert finish.offer is not None
    spoil(prefill, finish.offer)
    transfer = Transfer(pull=ask_for(finish.offer))
    decode.admit(Submission(id="d", prompt=prompt, max_tokens=tokens, transfer=transfer), 0.0)
    (pull,) = decode.step(0.0).pulls
    decode.pulled(pull, prefill.pins.read("p", pull.blocks))
    assert prefill.pool.used == 0
    found = run_out(decode)
    assert decode.counters.computed_prompt_tokens == computed
    return found


@given(prompts, st.integers(1, 12), st.integers(0, 20))
def test_a_pulled_prompt_is_answered_as_a_computed_one(
    prompt: list[int], tokens: int, cached: int
) -> None:
    assert handed_over(prompt, tokens, cached=cached) == answer_alone(prompt, tokens)


@given(prompts, st.integers(6, 12), st.data())
def test_one_overwritten_block_makes_the_answer_wrong(
    prompt: list[int], tokens: int, data: st.DataObject
) -> None:
    def spoil(engine: Engine, offer: Offer) -> None:
        block = data.draw(st.sampled_from(offer.blocks))
        engine.pool.write(block, (123, 456))

    assert handed_over(prompt, tokens, spoil=spoil) != answer_alone(prompt, tokens)


def test_what_is_computed_on_wrong_blocks_is_wrong_and_stays_in_the_cache() -> None:
    decode = Engine(SETTINGS)
    source = PullAsk(engine_id="p", request_id="r", host="h", port=1, blocks=(0, 1))
    asked = Submission(id="d", prompt=range(8), max_tokens=9, transfer=Transfer(pull=source))
    decode.admit(asked, 0.0)
    (pull,) = decode.step(0.0).pulls
    decode.pulled(pull, [(1, 0), (2, 0)])
    longer = [*range(8), *run_out(decode)]
    # The blocks that were pulled are forgotten and computed as they should be; the rest is found.
    decode.evict(range(8))
    decode.admit(Submission(id="e", prompt=[*range(8), 99], max_tokens=1), 0.0)
    run_out(decode)
    assert decode.cached_prefix(longer) == 16
    decode.admit(Submission(id="f", prompt=longer, max_tokens=3), 0.0)
    assert run_out(decode) != answer_alone(longer, 3)


def test_what_was_pulled_on_top_of_wrong_blocks_is_as_it_came() -> None:
    prompt = [*range(8), 7]
    decode = Engine(SETTINGS)
    source = PullAsk(engine_id="p", request_id="r", host="h", port=1, blocks=(0,))
    decode.admit(
        Submission(id="d", prompt=range(4), max_tokens=1, transfer=Transfer(pull=source)), 0.0
    )
    (pull,) = decode.step(0.0).pulls
    decode.pulled(pull, [(1, 0)])
    run_out(decode)

    prefill = Engine(SETTINGS)
    asked = Submission(id="p", prompt=prompt, max_tokens=1, transfer=Transfer(offer=True))
    prefill.admit(asked, 0.0)
    run_out(prefill)
    source = PullAsk(engine_id="p", request_id="p", host="h", port=1, blocks=(0, 1, 2))
    decode.admit(
        Submission(id="e", prompt=prompt, max_tokens=3, transfer=Transfer(pull=source)), 0.0
    )
    (pull,) = decode.step(0.0).pulls
    assert pull.blocks == (1, 2)
    decode.pulled(pull, prefill.pins.read("p", pull.blocks))
    assert run_out(decode) != answer_alone(prompt, 3)

    decode.evict(range(4))
    decode.admit(Submission(id="f", prompt=[*range(4), 99], max_tokens=1), 0.0)
    run_out(decode)
    assert decode.cached_prefix(prompt) == 8
    decode.admit(Submission(id="g", prompt=prompt, max_tokens=3), 0.0)
    assert run_out(decode) == answer_alone(prompt, 3)
