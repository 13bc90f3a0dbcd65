"""Simulated engines under the real pool state, in virtual time: arrivals in, times of answers out.

Engines are the pure machines of `epp.sim`; their KV events and load reach the pool as records of a
sidecar, every `report_s`; first tokens and ends come at once, as the picker's own stream tells
them. The choice is a sum of weighted scorers with random ties, as in a profile.
"""

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any

import msgspec
import numpy as np

from epp.framework import Candidates, EndpointId, PoolId, Request, Scorer
from epp.framework.registry import build_scorer
from epp.sim.engine import Engine
from epp.sim.serving.publisher import EventBatch
from epp.sim.settings import CoreSettings
from epp.sim.submission import Finish, Submission
from epp.state import blocks, events
from epp.state.endpoints import Endpoints, Member
from epp.state.engine_blocks import EngineBlocks
from epp.state.load import LoadBook, LoadReport
from epp.state.pool import PoolState
from epp.state.prefix.index import PrefixIndex
from epp.state.prefix.predicted import PredictedIndex
from epp.state.records import BlockChange, EngineStatus, Record, encode

POOL = PoolId("pool")
MODEL = "sim"
Weights = Sequence[tuple[str, float, Mapping[str, Any]]]
"""Type, weight and parameters of each scorer."""
GPU = {
    "prefill_tokens_per_s": 8000.0,
    "decode_step_s": 0.02,
    "batch_growth": 0.01,
    "num_blocks": 8192,
    "max_num_seqs": 128,
}
"""An engine about as fast as the priors of `Speeds` say."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of a workload."""

    at: float
    tokens: tuple[int, ...]
    answer: int
    limit: int = 0
    """What the client allows; 0: what it will take."""


@dataclass(slots=True)
class Served:
    """What became of it."""

    ask: Ask
    engine: int
    finish: Finish
    cached: int

    @property
    def ttft_s(self) -> float:
        return self.finish.first_token - self.ask.at

    @property
    def took_s(self) -> float:
        return self.finish.ended - self.ask.at


class Fleet:
    """Some engines, the pool's state over them, and scorers that choose."""

    def __init__(
        self,
        settings: Sequence[CoreSettings],
        weights: Weights,
        *,
        seed: int = 0,
        report_s: float = 0.1,
        blind: bool = False,
    ) -> None:
        """`blind`: nobody reports load or blocks; the pool knows what it sent."""
        self.chance = Random(seed)
        self.engines = [Engine(one) for one in settings]
        self.scorers: list[tuple[Scorer, float]] = [
            (build_scorer(kind, dict(parameters)), weight) for kind, weight, parameters in weights
        ]
        self.load = LoadBook()
        self.state = PoolState(
            POOL, Endpoints(), PrefixIndex(1_000_000), PredictedIndex(100_000, 300.0), self.load
        )
        self.ids = [EndpointId(POOL, f"pod-{n}", 8000) for n in range(len(settings))]
        self.state.replace(
            [Member(id=ident, address=f"10.0.0.{n}:8000") for n, ident in enumerate(self.ids)], 0.0
        )
        self.served: list[Served] = []
        self._report_s = report_s
        self._mirrors = [EngineBlocks(MODEL) for _ in settings]
        self._untold: list[tuple[set[int], set[int]]] = [(set(), set()) for _ in settings]
        self._seq: Counter[int] = Counter()
        self._queue: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()
        self._asked: dict[str, tuple[Ask, int]] = {}
        self.now = 0.0
        if not blind:
            for number in range(len(settings)):
                self._report(number, 0.0)

    def run(self, asks: Sequence[Ask]) -> list[Served]:
        """Serve all of them; returns what was served so far, in order of its end."""
        wanted = len(self.served) + len(asks)
        for ask in asks:
            self._at(max(ask.at, self.now), partial(self._send, ask))
        while self._queue and len(self.served) < wanted:
            self.now, _, act = heapq.heappop(self._queue)
            act(self.now)
        return self.served

    def shares(self) -> list[int]:
        """Requests served by each engine."""
        counts = Counter(one.engine for one in self.served)
        return [counts[number] for number in range(len(self.engines))]

    def choose(self, request: Request, now: float) -> int:
        request = replace(request, twins=self.state.twins(request.keys, now))
        found = Candidates.of(
            self.state.candidates(
                request.keys, block_tokens=64, prompt_tokens=request.prompt_tokens, now=now
            )
        )
        totals = np.zeros(len(found))
        for scorer, weight in self.scorers:
            totals += weight * np.asarray(scorer.score(request, found))
        best = np.flatnonzero(totals >= totals.max() - 1e-9)
        chosen = found[int(best[self.chance.randrange(len(best))])]
        self.state.charge(chosen, request, now)
        return self.ids.index(chosen.id)

    # Mechanics

    def _at(self, when: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self._queue, (when, next(self._order), act))

    def _send(self, ask: Ask, now: float) -> None:
        name = f"{next(self._order):x}"
        request = Request(
            id=name,
            api="completions",
            path="/v1/completions",
            model=MODEL,
            prompt_tokens=len(ask.tokens),
            output_tokens=ask.limit or ask.answer,
            exact=True,
            keys=blocks.token_keys(ask.tokens, blocks.seed_of(MODEL)),
            at=now,
        )
        number = self.choose(request, now)
        self._asked[name] = (ask, number)
        engine = self.engines[number]
        engine.admit(Submission(id=name, prompt=ask.tokens, max_tokens=ask.answer), now)
        if not engine.busy:
            self._step(number, now)

    def _step(self, number: int, now: float) -> None:
        step = self.engines[number].step(now)
        self._take_events(number, step.events)
        for output in step.outputs:
            if output.index == 0:
                self.state.response_headers(output.id, 200, now)
                self.state.first_byte(output.id, now)
            if output.finish is not None:
                self.state.finished(output.id, now)
                ask, where = self._asked.pop(output.id)
                self.served.append(Served(ask, where, output.finish, output.cached_tokens))
        if step.next_at is not None:
            self._at(step.next_at, partial(self._step, number))

    def _take_events(self, number: int, told: Sequence[Any]) -> None:
        if not told:
            return
        payload = msgspec.msgpack.encode(EventBatch(0.0, told))
        delta = self._mirrors[number].apply(events.decode(payload).events)
        stored, removed = self._untold[number]
        stored |= set(delta.stored)
        removed -= set(delta.stored)
        removed |= set(delta.removed)
        stored -= set(delta.removed)

    def _report(self, number: int, now: float) -> None:
        life = self.state.endpoints.incarnation(self.ids[number])
        assert life is not None
        engine = self.engines[number]
        self._seq[number] += 1
        stored, removed = self._untold[number]
        self._untold[number] = (set(), set())
        report = LoadReport(
            waiting=engine.waiting,
            running=engine.running,
            kv_usage=engine.kv_usage,
            total_blocks=engine.settings.num_blocks,
            block_tokens=engine.settings.block_tokens,
        )
        first = self._seq[number] == 1
        record = Record(
            incarnation=life,
            nonce=1,
            seq=self._seq[number],
            blocks=BlockChange(stored=tuple(stored), removed=tuple(removed), reset=first),
            status=EngineStatus(report=report, ready=True, events=True),
        )
        self.state.apply(encode(record), now)
        self.state.tick(now)
        self._at(now + self._report_s, partial(self._report, number))
