"""Has the images, audio and video of a request encoded by other pods, before anything else is done.

Rules
 1. Each item is one leg, proven like a prefill leg; they go to the encoders in turn, at most
    `MAX_AT_ONCE` at a time. Nothing is pinned by them, so that a leg may be cut at any time, and be
    tried once more at the next encoder.
 2. All legs of a request have one time limit, of which the client's deadline takes no more than
    half. A client that leaves cancels them.
 3. Without an item's embeddings whoever computes the prompt encodes it as well. Where pods cannot
    (`on_failure` fail), the first item that fails ends the request: with the encoder's own answer
    if the client is at fault, else with one of ours.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from epp.bodies.sharing import Api
from epp.bodies.spans import Body
from epp.protocol import ENCODERS
from sidecar.handoff import CLIENT_ERRORS
from sidecar.http import headers, refusals
from sidecar.http.client import Answer, Upstream, Whole, whole
from sidecar.http.incoming import Incoming
from sidecar.http.refusals import LegError
from sidecar.proxy import Outcome
from sidecar.transfer.deadline import Deadline
from sidecar.transfer.door import Door
from sidecar.transfer.job import fault_of, leg_call, proven
from sidecar.transfer.legs import REFUSED_STATUS
from sidecar.transfer.params import points_at_itself
from sidecar.transfer.reading import Visit
from sidecar.transfer.steps import Fallback, Fault
from sidecar.transfer.targets import Target
from sidecar.trust.breakers import Breakers
from sidecar.trust.named import Judged

from . import media
from .metrics import EncodeMetrics

EncodeConnector = Literal["ec-nixl", "ec-example"]
"""How embeddings get to who needs them: by what encoders answer, or by a storage in common."""

MAX_AT_ONCE = 16
"""Encode legs of one request that are under way."""
MAX_ANSWER = 256 << 10
"""Longest answer of an encoder, in bytes."""
ATTEMPTS = 2
"""Encoders that an item is tried at."""
_STATUS = {Fault.CONNECT: 503, Fault.CANCELLED: 504}


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodePolicy:
    """Raises ValueError for a limit that is none."""

    within_s: float = 60.0
    """From the first leg to the end of the last."""
    on_failure: Fallback = Fallback.RECOMPUTE

    def __post_init__(self) -> None:
        if not 0 < self.within_s < float("inf"):
            raise ValueError("encoding needs a finite time limit above 0")


@dataclass(frozen=True, slots=True)
class Failed:
    """Why an item was not encoded; `answer` is the encoder's own, if it gave one."""

    fault: Fault
    status: int = 0
    answer: Whole | None = None

    @property
    def word(self) -> str:
        return "timeout" if self.fault is Fault.CANCELLED else self.fault.value


Told = Mapping[str, bytes]


class _FirstFailureError(Exception):
    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.word)
        self.failed = failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoders:
    """One for a sidecar."""

    door: Door
    upstream: Upstream
    policy: EncodePolicy
    metrics: EncodeMetrics
    clock: Callable[[], float]
    wall_s: Callable[[], float]
    new_id: Callable[[], str]
    """Makes ids that are unique in the pool."""
    breakers: Breakers = field(default_factory=Breakers)

    def asked(self, judged: Judged) -> tuple[Target, ...] | str:
        """Who is to encode, or the stable reason why nobody does."""
        if self.door.off is not None:
            return self.door.off
        found = judged.named(ENCODERS)
        if isinstance(found, str):
            return found
        return self.breakers.usable(found, self.clock()) or "breaker-open"

    async def encode(
        self, visit: Visit, body: Body, api: Api, targets: tuple[Target, ...]
    ) -> bytes | None:
        """The body to go on with; None when the client got an error instead.

        Raises CancelledError for a client that left, ConnectionError when its connection broke.
        """
        items = media.items(body, api)
        if not items:
            self._count("no-media")
            return body.raw
        deadline = Deadline.of(visit.request, self.clock)
        job = _Encoding(self, visit.request, body, api, targets, deadline)
        try:
            found = await job.run(items)
        except _FirstFailureError as first:
            await self._answer(visit, first.failed)
            return None
        except asyncio.CancelledError:
            self._count("client-gone")
            raise
        done = [one for one in found if not isinstance(one, Failed)]
        self._count("failed" if not done else "encoded" if len(done) == len(found) else "partly")
        return media.with_told(body, done)

    async def _answer(self, visit: Visit, failed: Failed) -> None:
        """The client is told that its media could not be encoded."""
        if failed.answer is not None and failed.status in CLIENT_ERRORS:
            self._count("passed")
            head = failed.answer.head.under(visit.request.value("x-request-id"))
            await visit.passage.whole(head, failed.answer.body)
            visit.exchange.outcome = Outcome.ENGINE_ERROR
            return
        self._count("refused")
        status = _STATUS.get(failed.fault, 502)
        visit.passage.refuse(refusals.handoff_failed(status, f"encode-{failed.word}"))

    def _count(self, outcome: str) -> None:
        self.metrics.encodes.labels(outcome).inc()


@dataclass(frozen=True, slots=True)
class _Encoding:
    """The items of one request."""

    stage: Encoders
    request: Incoming
    body: Body
    api: Api
    targets: tuple[Target, ...]
    deadline: Deadline
    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_AT_ONCE))

    async def run(self, items: Sequence[bytes]) -> list[Told | Failed]:
        """What became of each item. Raises _FirstFailureError where one failure is too many."""
        left_s = self.deadline.left_s
        within_s = self.stage.policy.within_s
        if left_s is not None and left_s > 0.0:
            within_s = min(within_s, left_s / 2)
        base = self.stage.new_id()
        tasks: list[asyncio.Task[Told | Failed]] = []
        failures: list[Exception] = []
        try:
            async with asyncio.TaskGroup() as tg:
                until = self.stage.clock() + within_s
                for number, item in enumerate(items):
                    tasks.append(tg.create_task(self._item(item, number, base, until)))
        except* _FirstFailureError as group:
            failures += group.exceptions  # what is raised in here would be wrapped again
        if failures:
            raise failures[0]
        return [task.result() for task in tasks]

    async def _item(self, item: bytes, number: int, base: str, until: float) -> Told | Failed:
        content = media.leg(self.body, self.api, item)
        found: Told | Failed = Failed(Fault.CANCELLED)
        async with self.places:
            for attempt, target in enumerate(self._turns(number)):
                left_s = until - self.stage.clock()
                if left_s <= 0:
                    found = Failed(Fault.CANCELLED)
                    break
                leg = f"{base}-e{number + 1}" + ("" if attempt == 0 else f".{attempt + 1}")
                found = await self._counted(content, leg, target, left_s)
                if not isinstance(found, Failed) or found.status in CLIENT_ERRORS:
                    break
        if isinstance(found, Failed) and self.stage.policy.on_failure is Fallback.FAIL:
            raise _FirstFailureError(found)
        return found

    def _turns(self, number: int) -> Iterable[Target]:
        """The encoders of one item: one after the other gets the first try."""
        begin = number % len(self.targets)
        return (*self.targets[begin:], *self.targets[:begin])[:ATTEMPTS]

    async def _counted(self, body: bytes, leg: str, target: Target, left_s: float) -> Told | Failed:
        stage, now = self.stage, self.stage.clock
        stage.breakers.sent(target, now())
        try:
            async with asyncio.timeout(left_s):
                found = await self._leg(body, leg, target)
        except TimeoutError:
            found = Failed(Fault.CANCELLED)
        except LegError as error:
            found = Failed(fault_of(error.refused))
        if not isinstance(found, Failed):
            stage.breakers.succeeded(target)
            stage.metrics.legs.labels("encoded").inc()
            return found
        own = found.fault is not Fault.STATUS or found.status >= 500
        if own or found.status == REFUSED_STATUS:
            stage.breakers.failed(target, now())
        else:
            stage.breakers.succeeded(target)
        stage.metrics.legs.labels(found.word).inc()
        return found

    async def _leg(self, body: bytes, leg: str, target: Target) -> Told | Failed:
        stage = self.stage
        began, at = stage.clock(), stage.door.where(target)
        sent = leg_call(self.request, self.deadline, leg, body)
        answer = await stage.upstream.send_to(at, proven(sent, leg, at, stage.door, stage.wall_s()))
        try:
            said = await whole(answer, MAX_ANSWER, LegError(refusals.ENGINE_GARBLED))
        finally:
            answer.close()
        stage.metrics.leg_seconds.observe(stage.clock() - began)
        return self._read(answer, said, target)

    def _read(self, answer: Answer, said: bytes, target: Target) -> Told | Failed:
        status = answer.head.status
        if status >= 400 and headers.is_fit(answer.head.fields):
            return Failed(Fault.STATUS, status, Whole(answer.head, said))
        if status != 200:
            return Failed(Fault.GARBLED)
        told = media.told(said)
        own = self.request.at
        if own is not None and own.host == target.host:
            return told
        kept = {name: text for name, text in told.items() if not _leads_home(text)}
        self.stage.metrics.misaddressed.inc(len(told) - len(kept))
        return kept


def _leads_home(params: bytes) -> bool:
    host = media.host_of(params)
    return bool(host) and points_at_itself(host)
