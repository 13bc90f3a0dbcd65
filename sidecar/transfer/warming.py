"""Lets the engines of new pairs shake hands before the first prompt: its pull would wait for it.

With NIXL the first pull from a prefill engine costs seconds, each further one milliseconds. So who
decodes asks every member that prefills for a few tokens once, and pulls them; again when it is new
in the list, or when a leg to it has failed, for it may be another engine by then. One pair at a
time; what fails is tried again after `RETRY_S`, and costs no request anything.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from epp.bodies.sharing import Api
from epp.bodies.spans import Body
from sidecar.connectors import Meeting, Plan
from sidecar.http.client import Upstream
from sidecar.http.incoming import Incoming
from sidecar.http.refusals import LegError
from sidecar.trust.pairs import Pairs

from .deadline import Deadline
from .door import Door
from .job import leg_call, proven, read_whole
from .metrics import HandoffMetrics
from .params import points_at_itself
from .targets import Target

PAUSE_S = 0.5
"""Between two looks at the members."""
RETRY_S = 30.0
LEG_S = 20.0
"""How long either leg may take; less than the lease of the blocks."""
BODY = Body.read(b'{"prompt":[1,2,3,4,5,6,7,8,9],"max_tokens":2,"temperature":0}')
"""Less than a block, so that it is in no cache and always pulled. Any vocabulary has these ids, and
an engine takes the model that it serves."""


@dataclass(slots=True, kw_only=True)
class Warming:
    """One for a sidecar."""

    door: Door
    plan: Plan
    upstream: Upstream
    pairs: Pairs | None
    metrics: HandoffMetrics
    ready: Callable[[], bool]
    """Whether the local engine serves."""
    clock: Callable[[], float]
    wall_s: Callable[[], float]
    new_id: Callable[[], str]
    """Makes ids that are unique in the pool."""
    _warm: set[Target] = field(default_factory=set, init=False)
    _until: dict[Target, float] = field(default_factory=dict, init=False)
    """When to try again."""

    def __len__(self) -> int:
        """Members that have been met."""
        return len(self._warm)

    def forget(self, target: Target) -> None:
        """It may be another engine the next time."""
        self._warm.discard(target)

    async def run(self) -> None:
        """Meet whoever has not been met, until cancelled."""
        while True:
            own = self.door.guard.own
            if self.door.off is None and self.ready() and (own is None or own.role.serves_decode):
                members = self.door.guard.prefillers
                self._keep(members)
                for target in members:
                    await self._meet(target)
            await asyncio.sleep(PAUSE_S)

    def _keep(self, members: Iterable[Target]) -> None:
        """Forget who has left."""
        self._warm.intersection_update(members)
        self._until = {at: until for at, until in self._until.items() if at in members}

    async def _meet(self, target: Target) -> None:
        if target in self._warm or self.clock() < self._until.get(target, 0.0):
            return
        outcome = await self._outcome(target)
        self.metrics.warmed.labels(outcome).inc()
        if outcome == "met":
            self._warm.add(target)
        else:
            self._until[target] = self.clock() + RETRY_S

    async def _outcome(self, target: Target) -> str:
        """`met`, or the stable reason why they were not."""
        if self.pairs is not None:
            (difference,) = await self.pairs.differences([target])
            if difference is not None:
                return difference
        try:
            params = await self._prefilled(target)
            return params if isinstance(params, str) else await self._pulled(params)
        except (LegError, TimeoutError):
            return "unreachable"

    async def _prefilled(self, target: Target) -> bytes | str:
        """The parameters of a few tokens there, or why there are none."""
        leg, at = f"{self.new_id()}-w", self.door.where(target)
        meeting = Meeting(leg=leg, target=target)
        body = self.plan.prefill(BODY, Api.COMPLETIONS, meeting)
        sent = leg_call(_REQUEST, Deadline(None, self.clock), leg, body)
        async with asyncio.timeout(LEG_S):
            answer = await self.upstream.send_to(
                at, proven(sent, leg, at, self.door, self.wall_s())
            )
            try:
                whole = await read_whole(answer)
            finally:
                answer.close()
        if answer.head.status != 200:
            return "status"
        found = self.plan.read(whole, meeting).transfer
        if found is None:
            return "no-params"
        own = self.door.guard.own
        if points_at_itself(found.host) and (own is None or own.at.host != target.host):
            return "misaddressed"
        return found.take()

    async def _pulled(self, params: bytes) -> str:
        """Pull them with the local engine, which frees them there."""
        body = self.plan.release(BODY, Api.COMPLETIONS, params)
        sent = leg_call(_REQUEST, Deadline(None, self.clock), f"{self.new_id()}-w", body)
        async with asyncio.timeout(LEG_S):
            answer = await self.upstream.send_once(sent)
            try:
                await read_whole(answer)
            finally:
                answer.close()
        return "met" if answer.head.status == 200 else "pull-status"


_REQUEST = Incoming(
    method="POST", target=Api.COMPLETIONS, fields=[(b"content-type", b"application/json")]
)
