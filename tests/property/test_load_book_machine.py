"""Whatever happens in whatever order: sums equal the open reservations, and end at zero."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from epp.framework import EndpointId, Incarnation, PoolId
from epp.state.load import LoadBook, LoadReport, LoadRules, Sums

IDS = st.sampled_from([f"r{number}" for number in range(6)])
LIVES = st.sampled_from(
    [Incarnation(EndpointId(PoolId("p"), name, 1), start) for name in "ab" for start in (1, 2)]
)
TOKENS = st.integers(0, 50_000)


class LoadBookMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.book = LoadBook(LoadRules(max_reservations=5, done_cap_s=50.0))
        self.now = 0.0
        self.ended = 0

    @rule(seconds=st.floats(0, 30))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(life=LIVES, name=IDS, prefill=TOKENS, decode=TOKENS, writer=st.booleans())
    def reserve(
        self, life: Incarnation, name: str, prefill: int, decode: int, writer: bool
    ) -> None:
        before = len(self.book)
        taken = self.book.reserve(
            life,
            name,
            prefill_tokens=prefill,
            decode_tokens=decode,
            has_writer=writer,
            now=self.now,
        )
        assert len(self.book) == before + taken

    @rule(life=LIVES, name=IDS, prefill=TOKENS, decode=TOKENS, writer=st.booleans())
    def move(self, life: Incarnation, name: str, prefill: int, decode: int, writer: bool) -> None:
        before = len(self.book)
        moved = [
            self.book.move(
                life, name, prefill_tokens=prefill, decode_tokens=decode, has_writer=writer
            )
            for _ in range(2)
        ]
        assert not moved[1]
        assert len(self.book) == before

    @rule(name=IDS)
    def headers(self, name: str) -> None:
        self.book.response_headers(name, self.now)

    @rule(name=IDS)
    def first_token(self, name: str) -> None:
        self.book.first_token(name, self.now)
        sums = self.book.sums()
        self.book.first_token(name, self.now)
        assert self.book.sums() == sums

    @rule(name=IDS, measured=st.booleans())
    def finish(self, name: str, measured: bool) -> None:
        self.book.finish(name, self.now, measured=measured)
        sums = self.book.sums()
        assert not self.book.finish(name, self.now)
        assert self.book.sums() == sums

    @rule(name=IDS)
    def leave(self, name: str) -> None:
        self.book.leave(name, self.now)
        sums = self.book.sums()
        self.book.leave(name, self.now)
        assert self.book.sums() == sums

    @rule(life=LIVES, size=st.none() | st.integers(1, 256))
    def report(self, life: Incarnation, size: int | None) -> None:
        self.book.report(life, LoadReport(waiting=1, block_tokens=size), self.now)

    @rule(life=LIVES)
    def writer_seen(self, life: Incarnation) -> None:
        self.book.writer_seen(life)

    @rule(life=LIVES)
    def writer_lost(self, life: Incarnation) -> None:
        self.book.writer_lost(life, self.now)

    @rule(life=LIVES)
    def forget(self, life: Incarnation) -> None:
        self.book.forget(life)
        assert life not in self.book.sums()

    @rule(life=LIVES)
    def adopt(self, life: Incarnation) -> None:
        if life.start_ms == 1:
            self.book.adopt(life, Incarnation(life.endpoint, 2))

    @rule()
    def tick(self) -> None:
        self.book.tick(self.now)

    @invariant()
    def sums_are_those_of_the_open_reservations(self) -> None:
        expected: dict[Incarnation, Sums] = {}
        for held in self.book._requests.values():
            assert not held.ended
            old = expected.get(held.life.incarnation, Sums())
            expected[held.life.incarnation] = Sums(
                old.requests + 1,
                old.pending + held.pending,
                old.prefill_tokens + held.prefill_tokens * held.pending,
                old.decode_blocks + held.decode_blocks * (not held.shown),
            )
        assert self.book.sums() == expected

    @invariant()
    def no_number_is_negative(self) -> None:
        for life in list(self.book._lives):
            load = self.book.load(life, self.now)
            assert load.reserved_requests >= load.reserved_pending >= 0
            assert load.reserved_prefill_tokens >= 0
            assert load.reserved_decode_blocks >= 0

    def teardown(self) -> None:
        for name in [f"r{number}" for number in range(6)]:
            self.book.finish(name, self.now)
        assert self.book.sums() == {}
        assert len(self.book) == 0
        for life in self.book._lives.values():
            assert (life.pending, life.prefill_tokens, life.decode_blocks) == (0, 0, 0)
        self.book.tick(self.now + 1_000)
        assert not self.book._deadlines


TestLoadBookMachine = LoadBookMachine.TestCase
TestLoadBookMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
