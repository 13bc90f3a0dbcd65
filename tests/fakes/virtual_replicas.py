"""A fleet in virtual time whose requests are decided by several replicas, each with its own state.

All of them read every record, as from a shared log. What each has reserved the others hear each
`share_s`; never, where that is None.
"""

from collections.abc import Sequence
from random import Random
from typing import Any

from epp.framework import Endpoint, Request
from epp.sim.settings import CoreSettings
from epp.state.endpoints import Endpoints, Member
from epp.state.load import LoadBook
from epp.state.pool import PoolState
from epp.state.prefix.index import PrefixIndex
from epp.state.prefix.predicted import PredictedIndex
from epp.state.replicas import own
from tests.fakes.virtual_fleet import POOL, Fleet, Weights


class Replicas:
    """What a fleet needs of a `PoolState`, dealt out among several of them."""

    def __init__(self, states: Sequence[PoolState], chance: Random) -> None:
        self.states = states
        self._chance = chance
        self._asked = states[0]
        self._by_request: dict[str, PoolState] = {}

    def __getattr__(self, name: str) -> Any:
        """What only the one that is asked just now can say."""
        return getattr(self._asked, name)

    def ask_anyone(self) -> None:
        """A decision begins: the gateway asks one of them."""
        self._asked = self._chance.choice(self.states)

    def charge(self, endpoint: Endpoint, request: Request, now: float) -> None:
        self._by_request[request.id] = self._asked
        self._asked.charge(endpoint, request, now)

    def response_headers(self, request_id: str, status: int, now: float) -> None:
        self._by_request[request_id].response_headers(request_id, status, now)

    def first_byte(self, request_id: str, now: float) -> None:
        self._by_request[request_id].first_byte(request_id, now)

    def finished(self, request_id: str, now: float) -> None:
        self._by_request.pop(request_id).finished(request_id, now)

    def apply(self, record: bytes, now: float) -> None:
        for state in self.states:
            state.apply(record, now)

    def tick(self, now: float) -> None:
        for state in self.states:
            state.tick(now)


class ReplicatedFleet(Fleet):
    def __init__(
        self,
        settings: Sequence[CoreSettings],
        weights: Weights,
        *,
        replicas: int,
        share_s: float | None = 0.1,
        seed: int = 0,
    ) -> None:
        super().__init__(settings, weights, seed=seed, blind=True)
        members = list(self.state.endpoints)
        states = [self.state, *(_state(members) for _ in range(replicas - 1))]
        self.replicas = Replicas(states, Random(seed))
        self.state = self.replicas  # type: ignore[assignment]  # it has what a fleet asks for
        self._share_s = share_s
        for number in range(len(settings)):
            self._report(number, 0.0)
        if share_s is not None:
            self._share(0.0)

    def choose(self, request: Request, now: float) -> int:
        self.replicas.ask_anyone()
        return super().choose(request, now)

    def _share(self, now: float) -> None:
        states = self.replicas.states
        said = [
            own(str(number), state.reserved(), state.foretold())
            for number, state in enumerate(states)
        ]
        for number, state in enumerate(states):
            state.elsewhere([one for one in said if one.replica != str(number)], now)
        assert self._share_s is not None
        self._at(now + self._share_s, self._share)


def _state(members: Sequence[Member]) -> PoolState:
    state = PoolState(
        POOL, Endpoints(), PrefixIndex(1_000_000), PredictedIndex(100_000, 300.0), LoadBook()
    )
    state.replace(members, 0.0)
    return state
