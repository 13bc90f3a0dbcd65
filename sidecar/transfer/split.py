"""Which requests are handed over, and with what: the sidecar's side of a split decision.

The picker asks for a split with `x-prefiller-host-port`. It happens where the request can be split,
legs can be proven, and a target is another member of the pool. Whatever stands against it sends the
request to the local engine alone, counted by its reason; so does a failure of our own, as long as
the client has got nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import structlog

from epp.protocol import PREFILLER
from sidecar import bodies
from sidecar.connectors import Meeting
from sidecar.handoff import Handoff
from sidecar.http.incoming import Incoming
from sidecar.proxy import Journal, Readiness
from sidecar.trust.named import Judged

from .deadline import Deadline
from .door import Door
from .handover import Handover
from .job import Job, Tools
from .metrics import PHASES, HandoffMetrics
from .reading import Visit, read
from .steps import Fallback, HandoffPolicy
from .targets import Target
from .tracing import HandoffTrace

WHOLE = "whole"
"""Outcome of a request that was not handed over although the picker wanted it."""
BROKEN = "breaker-open"

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
        job = await self._job(visit, body, judged, source)
        if isinstance(job, Job):
            job = await self._paired(job)
        if isinstance(job, str):
            self.metrics.handoffs.labels(WHOLE, job).inc()
            return False
        policy = self.policy.within(job.deadline.left_s)
        handover = Handover(
            handoff=Handoff(policy, self.new_id()),
            job=job,
            tools=self.tools,
            door=self.door,
            journal=self.journal,
            metrics=self.metrics,
            wall_s=self.wall_s,
            hurried=policy is not self.policy,
        )
        self.running.add(handover)
        try:
            await handover.serve()
        except ExceptionGroup as group:  # edge: a failure of our own
            log.exception("a handoff failed inside the sidecar", exc_info=group)
            self.metrics.handoffs.labels(WHOLE, "failed").inc()
            if visit.passage.begun:
                raise
            return False
        else:
            return True
        finally:
            self.running.discard(handover)
            handover.end()

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

    async def _paired(self, job: Job) -> Job | str:
        """With those targets only whose engines fit this one."""
        pairs, found = self.tools.pairs, job.targets
        if pairs is None:
            return job
        differences = await pairs.differences(found)
        refused = [reason for reason in differences if reason is not None]
        for reason in refused:
            self.metrics.targets_refused.labels(reason).inc()
        fit = tuple(one for one, reason in zip(found, differences, strict=True) if reason is None)
        return replace(job, targets=fit) if fit else refused[0]

    async def _job(
        self,
        visit: Visit,
        body: bytes,
        judged: Judged,
        source: Target | None,
    ) -> Job | str:
        """The job, or why the local engine serves the request alone."""
        found = self.door.off or self._usable(judged.named(PREFILLER))
        if isinstance(found, str):
            return found
        if self.refusing() is not None:
            return "engine-not-ready"  # a prefill would pin blocks that nobody pulls
        understood = await read(visit.request, body)
        if isinstance(understood, str):
            return understood
        api, content = understood
        return self.tools.plan.unsplittable(content, api) or Job(
            request=visit.request,
            exchange=visit.exchange,
            passage=visit.passage,
            body=content,
            api=api,
            targets=found,
            streams=bodies.streams(content),
            deadline=Deadline.of(visit.request, self.tools.clock),
            trace=HandoffTrace(self.tools.tracer, visit.request),
            source=source,
        )

    async def alone(self, request: Incoming, body: bytes, source: Target) -> bytes:
        """The body with which the local engine computes the prompt itself, from what it may fetch
        from the `source`."""
        understood = await read(request, body)
        if isinstance(understood, str):
            return body
        meeting = Meeting(leg=f"{self.new_id()}-s", target=source)
        return self.tools.plan.fetching(understood[1], meeting) or body
