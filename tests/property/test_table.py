"""The table of a pool says of every member what its parts say one by one, whatever happens."""

from itertools import count

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from epp.framework import (
    COLUMNS,
    NO_MATCH,
    EndpointId,
    Lora,
    Match,
    PoolId,
    Request,
    Role,
    Source,
)
from epp.state.charges import Trust
from epp.state.endpoints import Endpoints, Member
from epp.state.load import LoadBook, LoadReport, LoadRules
from epp.state.matching import matches
from epp.state.metrics_page import EngineMetrics
from epp.state.pool import PoolState
from epp.state.prefix.index import PrefixIndex, TierDepths
from epp.state.prefix.predicted import PredictedIndex

POOL = PoolId("p")
NAMES = ("a", "b", "c", "d")
KEYS = tuple(range(1, 9))
names = st.sampled_from(NAMES)


def member(name: str, role: Role = Role.UNLABELLED) -> Member:
    number = NAMES.index(name)
    return Member(
        id=EndpointId(POOL, name, 8000),
        address=f"10.0.0.{number}:8000",
        role=role,
        has_sidecar=number % 2 == 0,
        labels={"zone": name},
    )


class Pools(RuleBasedStateMachine):
    """Any order of news, seen at any moments."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 10.0
        self.endpoints = Endpoints()
        self.load = LoadBook(LoadRules(stale_s=2.0, duration_prior_s=30.0))
        self.index = PrefixIndex(1000)
        self.predicted = PredictedIndex(1000, 20.0)
        self.pool = PoolState(POOL, self.endpoints, self.index, self.predicted, self.load)
        self.ids = count()
        self.requests: list[str] = []

    @rule(part=st.sets(names), role=st.sampled_from([Role.UNLABELLED, Role.PREFILL]))
    def members(self, part: set[str], role: Role) -> None:
        self.pool.replace([member(name, role) for name in sorted(part)], self.now)

    @rule(seconds=st.sampled_from([0.0, 0.1, 1.0, 1.9, 5.0, 31.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(name=names, ready=st.booleans())
    def readiness(self, name: str, ready: bool) -> None:
        self.endpoints.set_ready(member(name).id, ready, self.now)

    @rule(name=names, refused=st.booleans())
    def scrape_fails(self, name: str, refused: bool) -> None:
        self.pool.scrape_failed(member(name).id, self.now, refused=refused)

    @rule(
        name=names,
        start=st.sampled_from([None, 1, 2, 3]),
        waiting=st.sampled_from([None, 0, 7]),
        adapters=st.booleans(),
    )
    def scraped(self, name: str, start: int | None, waiting: int | None, adapters: bool) -> None:
        lora = Lora(running=frozenset({"x"}), most=2) if adapters else None
        report = LoadReport(
            waiting=waiting, running=2, kv_usage=0.5, total_blocks=100, block_tokens=32, lora=lora
        )
        self.pool.scraped(member(name).id, EngineMetrics(start_ms=start, report=report), self.now)

    @rule(name=names, tokens=st.sampled_from([0, 64, 512, 5000]))
    def request(self, name: str, tokens: int) -> None:
        chosen = self.pool.at(member(name).address, self.now)
        if chosen is None:
            return
        request_id = f"r{next(self.ids)}"
        self.requests.append(request_id)
        wanted = Request(
            id=request_id,
            api="completions",
            path="/v1/completions",
            prompt_tokens=tokens,
            output_tokens=100,
            keys=KEYS[: tokens // 64],
        )
        self.pool.charge(chosen, wanted, self.now)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), step=st.sampled_from(["headers", "first", "end", "reset", "left"]))
    def progress(self, data: st.DataObject, step: str) -> None:
        name = data.draw(st.sampled_from(self.requests))
        if step == "headers":
            self.pool.response_headers(name, 200, self.now)
        elif step == "first":
            self.pool.first_byte(name, self.now)
        elif step == "end":
            self.pool.finished(name, self.now)
        else:
            self.pool.reset(name, answered=step == "left", now=self.now)

    @rule(name=names, held=st.integers(0, 8))
    def stored(self, name: str, held: int) -> None:
        inc = self.endpoints.incarnation(member(name).id)
        if inc is not None:
            self.index.store(inc, KEYS[:held])

    @rule(name=names)
    def cleared(self, name: str) -> None:
        inc = self.endpoints.incarnation(member(name).id)
        if inc is not None:
            self.index.clear(inc)

    @rule()
    def tick(self) -> None:
        self.pool.tick(self.now)

    @invariant()
    def every_row_is_what_its_parts_say(self) -> None:
        found = self.pool.candidates(KEYS, block_tokens=64, prompt_tokens=500, now=self.now)
        ready = self.endpoints.ready(self.now)
        assert list(found.ids) == [one.id for one, _ in ready]
        for row, (one, inc) in enumerate(ready):
            endpoint = found[row]
            assert (endpoint.address, endpoint.role, endpoint.incarnation) == (
                one.address,
                one.role,
                inc,
            )
            assert (endpoint.labels, endpoint.has_sidecar) == (one.labels, one.has_sidecar)
            assert endpoint.load == self.load.load(inc, self.now)
            assert endpoint.speeds.prefill_tokens_per_s == self.load.prefill_tokens_per_s(inc)
            assert found.loras[row] == endpoint.load.lora
            assert found.addresses[row] == endpoint.address
            held = self.index.lookup(KEYS, [inc]).get(inc, 0)
            sent = self.predicted.lookup(KEYS, [inc], self.now).get(inc, 0)
            assert endpoint.match == better(min(500, 64 * held), min(500, 64 * sent), fresh=False)
        for name, read in COLUMNS.items():
            plain = [read(endpoint) for endpoint in found]
            np.testing.assert_allclose(found.column(name), plain, rtol=1e-12, err_msg=name)


def better(precise: int, predicted: int, *, fresh: bool, trust: float = Trust().value) -> Match:
    """Of one endpoint. Blocks of a writer that fell silent are predictions like ours."""
    if precise and not fresh:
        precise, predicted = 0, max(precise, predicted)
    if not precise and not predicted:
        return NO_MATCH
    if precise and precise >= predicted * trust:
        return Match(precise, Source.PRECISE)
    return Match(predicted, Source.PREDICTED, trust)


TestPools = Pools.TestCase

depths = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 12), st.booleans(), st.floats(0, 1)),
    min_size=1,
    max_size=6,
)


@given(depths, st.integers(0, 800))
def test_a_match_is_the_same_for_one_endpoint_and_for_all(
    rows: list[tuple[int, int, bool, float]], prompt: int
) -> None:
    found = matches(
        TierDepths(np.array([row[0] for row in rows], np.int64), {}),
        np.array([row[1] for row in rows], np.int64),
        fresh=lambda: np.array([row[2] for row in rows]),
        trust=np.array([row[3] for row in rows]),
        prefill_tokens_per_s=np.full(len(rows), 8000.0),
        block_tokens=64,
        prompt_tokens=prompt,
        load_tokens_per_s=lambda _: np.full(len(rows), 200_000.0),
    )
    for row, (precise, predicted, fresh, value) in enumerate(rows):
        told, guessed = min(prompt, 64 * precise), min(prompt, 64 * predicted)
        expected = better(told, guessed, fresh=fresh, trust=value)
        assert found.of(row) == expected
        assert found.credited[row] == max(0.0, expected.credited_tokens)
        assert found.tokens[row] == expected.tokens
