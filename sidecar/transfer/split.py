"""Which requests are handed over, and with what: the sidecar's side of a split decision.

The picker asks for a split with `x-prefiller-host-port`. It happens where the request can be split,
legs can be proven, and a target is another member of the pool. Whatever stands against it sends the
request to the local engine alone, counted by its reason; so does a failure of our own, as long as
the client has got nothing.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import structlog

from epp.bodies.sharing import Api
from epp.bodies.spans import Body
from epp.protocol import PREFILLER
from sidecar import bodies
from sidecar.connectors import Meeting
from sidecar.handoff import Handoff
from sidecar.http.client import NearClient
from sidecar.http.incoming import Incoming
from sidecar.proxy import Journal, Readiness
from sidecar.trust.named import Judged

from .deadline import Deadline
from .door import Door
from .handover import Handover
from .job import Job, Tools
from .metrics import PHASES, HandoffMetrics
from .reading import Visit, read, read_at_once
from .steps import Fallback, HandoffPolicy
from .targets import Target
from .tracing import HandoffTrace

WHOLE = "whole"
"""Outcome of a request that was not handed over although the picker wanted it."""
BROKEN = "breaker-open"

Later = Callable[[], Awaitable[bool]]
"""What has to be waited for to serve a request; says what `Splitter.serve` says."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Splitter:
    """One for a sidecar."""

    door: Door
    tools: Tools
    policy: HandoffPolicy
    journal: Journal
    metrics: HandoffMetrics
    refusing: Readiness
    wall_s: Callable[[], float]
    new_id: Callable[[], str]
    """Makes ids that are unique in the pool."""
    running: set[Handover] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        for phase in PHASES:
            self.metrics.running.labels(phase).set_function(partial(self._waiting_for, phase))

    def _waiting_for(self, phase: str) -> int:
        return sum(handover.handoff.phase == phase for handover in self.running)

    async def serve(
        self,
        visit: Visit,
        body: bytes,
        judged: Judged,
        source: Target | None,
    ) -> bool:
        """Whether the request was served; if not, the local engine must serve it alone.

        `source`: who holds KV of its prompt. Raises CancelledError for a client that left.
        """
        found = self._found(judged)
        understood = found if isinstance(found, str) else await read(visit.request, body)
        understood = self._splittable(understood)
        if isinstance(found, str) or isinstance(understood, str):
            self._not_split(str(understood))
            return False
        return await self._compared(visit, understood, found, source)

    def at_once(self, visit: Visit, body: bytes, judged: Judged) -> Handover | Later | None:
        """A handoff that can begin, for a body of `INLINE_BYTES` at most; None where the local
        engine must serve the request alone."""
        found = self._found(judged)
        understood = found if isinstance(found, str) else read_at_once(visit.request, body)
        understood = self._splittable(understood)
        if isinstance(found, str) or isinstance(understood, str):
            self._not_split(str(understood))
            return None
        pairs = self.tools.pairs
        differences = (None,) * len(found) if pairs is None else pairs.known(found)
        if differences is None:
            return lambda: self._compared(visit, understood, found, None)
        return self._handover(visit, understood, found, differences, None)

    async def _compared(
        self,
        visit: Visit,
        understood: tuple[Api, Body],
        found: Sequence[Target],
        source: Target | None,
    ) -> bool:
        pairs = self.tools.pairs
        differences = [None] * len(found) if pairs is None else await pairs.differences(found)
        handover = self._handover(visit, understood, found, differences, source)
        if handover is None:
            return False
        try:
            await handover.serve()
        finally:
            self.over(handover)
        if handover.error is not None and visit.passage.begun:
            raise handover.error
        return handover.error is None

    def over(self, handover: Handover) -> None:
        """It has ended, however."""
        self.running.discard(handover)
        if handover.error is not None:
            log.error("a handoff failed inside the sidecar", exc_info=handover.error)
            self._not_split("failed")

    def _not_split(self, reason: str) -> None:
        self.metrics.handoffs.of(WHOLE, reason).inc()

    def _found(self, judged: Judged) -> tuple[Target, ...] | str:
        """Who may be asked for the prompt, or why nobody is."""
        found = self.door.off or self._usable(judged.named(PREFILLER))
        if isinstance(found, str):
            return found
        if self.refusing() is not None:
            return "engine-not-ready"  # a prefill would pin blocks that nobody pulls
        return found

    def _splittable(self, understood: tuple[Api, Body] | str) -> tuple[Api, Body] | str:
        """What was read, unless the connector cannot split it: then nobody is compared for it."""
        if isinstance(understood, str):
            return understood
        api, content = understood
        return self.tools.plan.unsplittable(content, api) or understood

    def _usable(self, found: tuple[Target, ...] | str) -> tuple[Target, ...] | str:
        """Without those that failed again and again, unless there is no other way."""
        if isinstance(found, str):
            return found
        usable = self.tools.breakers.usable(found, self.tools.clock())
        if not usable and self.policy.on_prefill_failure is Fallback.FAIL:
            return found
        left_out = len(found) - len(usable)
        if left_out:
            self.metrics.targets_refused.labels(BROKEN).inc(left_out)
        return usable or BROKEN

    def _handover(
        self,
        visit: Visit,
        understood: tuple[Api, Body],
        found: Sequence[Target],
        differences: Sequence[str | None],
        source: Target | None,
    ) -> Handover | None:
        """The handoff, to those targets only whose engines fit this one; None where the local
        engine serves the request alone."""
        api, content = understood
        refused = [reason for reason in differences if reason is not None]
        for reason in refused:
            self.metrics.targets_refused.labels(reason).inc()
        fit = [one for one, reason in zip(found, differences, strict=True) if reason is None]
        if not fit:
            self._not_split(refused[0])
            return None
        return self._made(
            Job(
                request=visit.request,
                exchange=visit.exchange,
                passage=visit.passage,
                body=content,
                api=api,
                targets=tuple(fit),
                streams=bodies.streams(content),
                deadline=Deadline.of(visit.request, self.tools.clock),
                trace=HandoffTrace(self.tools.tracer, visit.request),
                source=source,
            ),
            visit.near,
        )

    def _made(self, job: Job, near: NearClient | None) -> Handover:
        policy = self.policy.within(job.deadline.left_s)
        handover = Handover(
            handoff=Handoff(policy, self.new_id()),
            job=job,
            tools=self.tools,
            door=self.door,
            journal=self.journal,
            metrics=self.metrics,
            wall_s=self.wall_s,
            near=near,
            hurried=policy is not self.policy,
        )
        self.running.add(handover)
        return handover

    async def alone(self, request: Incoming, body: bytes, source: Target) -> bytes:
        """The body with which the local engine computes the prompt itself, from what it may fetch
        from the `source`."""
        understood = await read(request, body)
        if isinstance(understood, str):
            return body
        meeting = Meeting(leg=f"{self.new_id()}-s", target=source)
        return self.tools.plan.fetching(understood[1], meeting) or body
