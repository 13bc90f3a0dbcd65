"""Split and whole requests end in any order, are served elsewhere than they were sent, engines
restart and leave: no load is left behind.

A model of who was charged with what runs beside the real pool state.
"""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from epp.framework import EndpointId, Incarnation, PoolId, Request, Role
from epp.state.charges import Charges
from epp.state.endpoints import Endpoints, Member
from epp.state.load import LoadBook, LoadRules
from epp.state.pool import PoolState
from epp.state.prefix.index import PrefixIndex
from epp.state.prefix.predicted import PredictedIndex
from epp.state.records import Done, EngineStatus, FirstToken, Outcome, Record, encode

POOL = PoolId("p")
PODS = [EndpointId(POOL, name, 1) for name in "abc"]
ROLES = [Role.DECODE, Role.BOTH, Role.PREFILL]
KEYS = tuple(range(12))
NAMES = st.sampled_from([f"r{number}" for number in range(6)])
WHO = st.integers(0, 2)


@dataclass
class Part:
    """What one request put on one endpoint; the model's own book."""

    who: int
    life: int
    prefill_tokens: int
    computes: bool = True


class SplitMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.book = LoadBook(LoadRules(max_reservations=8))
        self.state = PoolState(
            POOL,
            Endpoints(),
            PrefixIndex(1_000),
            PredictedIndex(1_000, 300.0),
            self.book,
            charges=Charges(limit=50, max_keys=40),
        )
        self.lives = [1, 1, 1]
        self.seqs = [0, 0, 0]
        self.answers: dict[str, Part] = {}
        self.legs: dict[str, Part] = {}
        self.ids: dict[str, str] = {}
        self.requests: dict[str, Request] = {}
        self.split: set[str] = set()
        self.left: set[str] = set()
        self.early: dict[str, tuple[int, bool]] = {}
        """Who else spoke of a request, and whether it said that it is done."""
        self.past: list[str] = []
        members = [
            Member(id=ident, address=f"10.0.0.{n}:1", role=ROLES[n]) for n, ident in enumerate(PODS)
        ]
        self.state.replace(members, self.now)
        for who in range(3):
            self.say(who)

    def say(self, who: int, **fields) -> None:
        self.seqs[who] += 1
        record = Record(
            incarnation=Incarnation(PODS[who], self.lives[who]),
            nonce=self.lives[who],
            seq=self.seqs[who],
            status=EngineStatus(ready=True, events=True),
            **fields,
        )
        self.state.apply(encode(record), self.now)

    def name(self, slot: str) -> str:
        return self.ids.get(slot, slot)

    def over(self, name: str) -> None:
        """The request has ended, whoever said it."""
        self.answers.pop(name, None)
        self.legs.pop(name, None)

    def prefilled(self, name: str) -> None:
        """The first sign that the prompt is where it is answered."""
        self.legs.pop(name, None)
        if name in self.answers:
            self.answers[name].computes = False

    @rule(seconds=st.floats(0, 0.5))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(slot=NAMES, decode=st.integers(0, 1), prefill=st.none() | st.integers(1, 2))
    def charge(self, slot: str, decode: int, prefill: int | None) -> None:
        if self.name(slot) in self.answers or prefill == decode:
            return
        self.past.append(self.name(slot))
        name = self.ids[slot] = f"{slot}-{len(self.past)}"  # an id never comes a second time
        request = Request(
            id=name, api="c", path="/", prompt_tokens=768, output_tokens=16, keys=KEYS, whole=""
        )
        found = self.state.candidates(KEYS, block_tokens=64, prompt_tokens=768, now=self.now)
        by_id = {endpoint.id: endpoint for endpoint in found}
        other = None if prefill is None else by_id[PODS[prefill]]
        held = len(self.book)
        self.state.charge(by_id[PODS[decode]], request, self.now, prefill=other)
        if len(self.book) == held:
            return  # the book is full
        own = by_id[PODS[decode]].match.missing(768) if other is None else 0
        self.answers[name] = Part(decode, self.lives[decode], int(own))
        self.requests[name] = request
        if prefill is not None:
            self.split.add(name)
        if prefill is not None and len(self.book) == held + 2:
            tokens = int(by_id[PODS[prefill]].match.missing(768))
            self.legs[name] = Part(prefill, self.lives[prefill], tokens)

    @rule(slot=NAMES, who=WHO)
    def served_by(self, slot: str, who: int) -> None:
        name = self.name(slot)
        if name not in self.requests:
            return
        found = self.state.candidates(KEYS, block_tokens=64, prompt_tokens=768, now=self.now)
        chosen = next(endpoint for endpoint in found if endpoint.id == PODS[who])
        self.state.served_by(self.requests[name], chosen.address, [chosen], self.now)
        part = self.answers.get(name)
        if part is None or part.who == who or name in self.left:
            return
        lacks = 0 if name in self.split else int(chosen.match.missing(768))
        self.answers[name] = Part(who, self.lives[who], lacks, computes=part.computes)
        speaker, done = self.early.pop(name, (-1, False))
        if speaker == who and done:
            self.over(name)
        elif speaker == who:
            self.prefilled(name)

    @rule(slot=NAMES)
    def served_by_a_stranger(self, slot: str) -> None:
        name = self.name(slot)
        if name in self.requests:
            self.state.served_by(self.requests[name], "192.0.2.1:1", (), self.now)
            self.over(name)

    @rule(slot=NAMES, status=st.sampled_from([200, 400, 502]))
    def headers(self, slot: str, status: int) -> None:
        name = self.name(slot)
        self.state.response_headers(name, status, self.now)
        self.legs.pop(name, None)

    @rule(slot=NAMES)
    def first_byte(self, slot: str) -> None:
        name = self.name(slot)
        self.state.first_byte(name, self.now)
        self.prefilled(name)

    @rule(slot=NAMES)
    def finished(self, slot: str) -> None:
        name = self.name(slot)
        self.state.finished(name, self.now)
        self.over(name)

    @rule(slot=NAMES)
    def reset(self, slot: str) -> None:
        name = self.name(slot)
        self.state.reset(name, answered=False, now=self.now)
        self.over(name)

    @rule(slot=NAMES)
    def leave(self, slot: str) -> None:
        name = self.name(slot)
        self.state.reset(name, answered=True, now=self.now)
        self.legs.pop(name, None)
        self.left.add(name)

    @rule(slot=NAMES, who=WHO)
    def first_token(self, slot: str, who: int) -> None:
        name = self.name(slot)
        self.say(who, first_tokens=(FirstToken(name),))
        if name in self.answers and self.answers[name].who == who:
            self.prefilled(name)
        elif name in self.answers:
            self.early[name] = (who, False)

    @rule(slot=NAMES, who=WHO, outcome=st.sampled_from(list(Outcome)))
    def done(self, slot: str, who: int, outcome: Outcome) -> None:
        name = self.name(slot)
        self.say(who, done=(Done(decision_id=name, outcome=outcome, status=200),))
        if name in self.answers and self.answers[name].who == who:
            self.over(name)
        elif name in self.answers:
            self.early[name] = (who, True)

    @rule(data=st.data(), who=WHO)
    def echo(self, data: st.DataObject, who: int) -> None:
        """Signs of a request that ended long ago come once more."""
        if not self.past:
            return
        name = data.draw(st.sampled_from(self.past))
        if name in self.answers:
            return
        self.state.response_headers(name, 502, self.now)
        self.state.first_byte(name, self.now)
        over = Done(decision_id=name, outcome=Outcome.ENGINE_GONE, status=502)
        self.say(who, first_tokens=(FirstToken(name),), done=(over,))
        self.state.finished(name, self.now)
        self.state.reset(name, answered=True, now=self.now)

    @rule(who=WHO)
    def restart(self, who: int) -> None:
        self.lives[who] += 1
        self.seqs[who] = 0
        self.say(who)
        self.legs = {name: leg for name, leg in self.legs.items() if leg.who != who}
        for name in [name for name, part in self.answers.items() if part.who == who]:
            self.answers.pop(name)
        self.tick()
        self.legs = {name: leg for name, leg in self.legs.items() if name in self.answers}

    @rule()
    def tick(self) -> None:
        for who in range(3):  # writers that speak: nothing is estimated
            self.say(who)
        self.state.tick(self.now)

    @invariant()
    def every_endpoint_carries_what_the_model_says(self) -> None:
        for who, ident in enumerate(PODS):
            load = next(e.load for e in self.state.ready(self.now) if e.id == ident)
            parts = [p for p in (*self.answers.values(), *self.legs.values()) if p.who == who]
            assert all(part.life == self.lives[who] for part in parts)
            assert load.reserved_requests == len(parts)
            assert load.reserved_pending == sum(part.computes for part in parts)
            tokens = sum(part.prefill_tokens for part in parts if part.computes)
            assert load.reserved_prefill_tokens == tokens

    @invariant()
    def keys_wait_only_for_open_prefills(self) -> None:
        charges = self.state._charges
        assert charges._keys == sum(len(held.keys) for held in charges._open.values())
        assert charges._keys <= 40

    def teardown(self) -> None:
        for name in self.ids.values():
            self.state.finished(name, self.now)
        assert self.book.sums() == {}
        assert len(self.book) == 0
        assert self.state._charges._keys == 0


TestSplitMachine = SplitMachine.TestCase
TestSplitMachine.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
