"""A director over the real pool state, with a hand-driven clock and no network."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import msgspec

from epp.errors import Refusal
from epp.framework import Decision, EndpointId, PoolId, Request, Role
from epp.request.apis.catalog import ANY, Rules
from epp.request.director import PickDirector, PickSettings
from epp.request.exchange import Arrival, Outcome, Route
from epp.request.objectives import LiveObjectives
from epp.request.offload import Offload
from epp.request.plan.live import Built, LivePlan
from epp.request.profiles import ModeSwitch
from epp.request.sealing import Sealer
from epp.request.tokens import Tokenizer, Tokens
from epp.state.endpoints import Endpoints, Member
from epp.state.load import LoadBook, LoadReport
from epp.state.pool import PoolState
from epp.state.prefix.index import PrefixIndex
from epp.state.prefix.predicted import PredictedIndex
from tests.fakes.plans import Booth, default_built

POOL = PoolId("pool")


class Witness:
    """An observer that writes down what it is told."""

    def __init__(self) -> None:
        self.decisions: list[tuple[Decision, Request, str]] = []
        self.refusals: list[Refusal] = []
        self.failures: list[str] = []
        self.answers: list[tuple[int, bool]] = []
        self.agreements: list[bool | None] = []
        self.ignored_headers: list[str] = []

    def decided(self, decision: Decision, request: Request, why: str, took_s: float) -> None:
        assert took_s >= 0.0
        self.decisions.append((decision, request, why))

    def refused(self, refusal: Refusal) -> None:
        self.refusals.append(refusal)

    def failed(self, step: str) -> None:
        self.failures.append(step)

    def ignored(self, header: str) -> None:
        self.ignored_headers.append(header)

    def answered(self, request: Request, status: int, *, as_told: bool) -> None:
        self.answers.append((status, as_told))

    def shadowed(self, request: Request, *, agreed: bool | None) -> None:
        self.agreements.append(agreed)

    @property
    def last(self) -> Decision:
        return self.decisions[-1][0]


class Desk:
    """What a test holds of one director. Build it with `open_desk`."""

    def __init__(
        self,
        count: int,
        *,
        tokenizer: Tokenizer | None,
        spawn: Any,
        offload: Offload,
        settings: PickSettings | None,
        built: Built | None,
        split: str,
        roles: Sequence[Role],
        rules: Rules,
        sealer: Sealer | None,
    ) -> None:
        chance = Random(5)
        self.now = 1000.0
        self.offload = offload
        self.witness = Witness()
        self.switch = ModeSwitch()
        self.booth = Booth()
        self.objectives = LiveObjectives(chance)
        named = settings.destinations if settings is not None else 1
        self.live = LivePlan(built or default_built(split, endpoints=named))
        self.index = PrefixIndex(10_000)
        self.load = LoadBook()
        self.pool = PoolState(
            POOL, Endpoints(), self.index, PredictedIndex(10_000, 300.0), self.load
        )
        self.members = [
            Member(
                id=EndpointId(POOL, f"pod-{n}", 8000),
                address=f"10.0.0.{n}:8000",
                role=roles[n] if roles else Role.UNLABELLED,
            )
            for n in range(count)
        ]
        self.pool.replace(self.members, self.now)
        self.report([0] * count)
        self.tokens = Tokens(tokenizer=tokenizer, spawn=spawn, offload=offload, clock=self.clock)
        self.director = PickDirector(
            pool=self.pool,
            tokens=self.tokens,
            offload=offload,
            switch=self.switch,
            live=self.live,
            ballot=self.booth.ballot,
            chance=chance,
            clock=self.clock,
            observers=(self.witness,),
            objectives=self.objectives,
            settings=settings,
            rules=rules,
            sealer=sealer,
        )

    def clock(self) -> float:
        return self.now

    def report(self, waiting: list[int]) -> None:
        for member, depth in zip(self.members, waiting, strict=True):
            life = self.pool.endpoints.incarnation(member.id)
            assert life is not None
            report = LoadReport(waiting=depth, running=0, kv_usage=0.0, total_blocks=2048)
            self.load.report(life, report, self.now)

    async def decide(self, body: Any = None, **arrival: Any) -> Outcome:
        return await self.director.decide(post(body, **arrival))

    async def route(self, body: Any = None, **arrival: Any) -> Route:
        outcome = await self.decide(body, **arrival)
        assert isinstance(outcome, Route), outcome
        return outcome

    async def served(self, body: Any = None, **arrival: Any) -> Route:
        """Route a request and answer it whole."""
        route = await self.route(body, **arrival)
        route.progress.response_headers(200, None)
        route.progress.body(1)
        route.progress.finished()
        return route

    def reserved(self) -> int:
        """Requests that the pool still holds load for."""
        return sum(endpoint.load.reserved_requests for endpoint in self.pool.ready(self.now))


def post(
    body: Any = None,
    *,
    path: str = "/v1/completions",
    method: str = "POST",
    subset: tuple[str, ...] | None = None,
    headers: dict[str, str] | None = None,
    answer_shown: bool = False,
) -> Arrival:
    """A request; a body that is not bytes goes as JSON."""
    raw = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
    named = {":method": method, ":path": path, "content-type": "application/json"}
    return Arrival(
        headers={**named, **(headers or {})},
        body=raw,
        has_body=body is not None,
        subset=subset,
        answer_shown=answer_shown,
    )


def ask(prompt: Any = "hello", **fields: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": prompt, **fields}


@asynccontextmanager
async def open_desk(
    count: int = 4,
    *,
    tokenizer: Tokenizer | None = None,
    settings: PickSettings | None = None,
    built: Built | None = None,
    split: str = "prefix",
    roles: Sequence[Role] = (),
    rules: Rules = ANY,
    sealer: Sealer | None = None,
    then: Callable[[], None] = lambda: None,
) -> AsyncIterator[Desk]:
    """A desk of `count` idle endpoints, or one for each role; `then` runs before its tasks are
    awaited. `split`: as the flag; or `built` is the whole plan."""
    count = len(roles) or count
    with Offload() as offload:
        async with asyncio.TaskGroup() as tasks:
            yield Desk(
                count,
                tokenizer=tokenizer,
                spawn=tasks.create_task,
                offload=offload,
                settings=settings,
                built=built,
                split=split,
                roles=roles,
                rules=rules,
                sealer=sealer,
            )
            then()
