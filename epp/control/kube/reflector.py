"""Keeps one list of objects as the API server has it, for ever.

The server may end a watch, cut it, forget our version, refuse us, be silent or be away for an hour:
what was known stays, and the reflector goes on asking, ever more rarely. A watch asks to be ended
after half a minute, so that a connection over which nothing comes any more is noticed soon after.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Generic, TypeVar

import structlog

from .api import Api, Refused, Resource, Unanswered
from .reflection import Changes, Failed, Next, Reflection

T = TypeVar("T")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds."""

    watch_s: tuple[int, int] = (20, 30)
    """How long a watch is asked to last, at least and at most: not all end at once."""
    silent_s: float = 5.0
    """Beyond that without a word, nobody is there any more."""
    first_pause_s: float = 0.25
    longest_pause_s: float = 10.0
    absent_s: float = 15.0
    """How often a kind that is not installed is asked for."""
    believed_s: float = 30.0
    """A kind that was there is gone when the server has said so for so long: one that has just
    started may not know it yet."""


class Standing:
    """How a reflector stands. `counts`, beside those of its reflection: failed (no answer, or none
    that could be read), refused (a status of error), absent (no such kind)."""

    def __init__(self) -> None:
        self.synced = False
        """It was listed at least once, or is known not to exist."""
        self.installed = True
        """The server knows the kind, as far as we know."""
        self.fault: str | None = None
        """Why it does not go on just now, for people."""
        self.heard_at: float | None = None
        """When the server last said something about it."""
        self.counts: Counter[str] = Counter()


class Reflector(Generic[T]):
    """`run` it. `told` gets what changed, at least once after the first list; it may not wait."""

    def __init__(
        self,
        api: Api,
        resource: Resource,
        reflection: Reflection[T],
        told: Callable[[Changes[T]], None],
        *,
        clock: Callable[[], float],
        chance: Random,
        times: Times | None = None,
        standing: Standing | None = None,
        optional: bool = False,
    ) -> None:
        """`optional`: without this kind, or without a right to it, we do well."""
        self.resource = resource
        self.reflection = reflection
        self.standing = standing or Standing()
        reflection.counts = self.standing.counts
        self._api = api
        self._told = told
        self._clock = clock
        self._chance = chance
        self._times = times or Times()
        self._optional = optional
        self._pause_s = 0.0
        self._absent_since: float | None = None
        self._expiries = 0
        """Versions forgotten since the last word of a watch."""

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            try:
                pause_s = await self._step()
            except Refused as refused:
                pause_s = self._refused(refused)
            except (Unanswered, ValueError) as error:
                self.standing.counts["failed"] += 1
                pause_s = self._failed(str(error))
            await asyncio.sleep(pause_s)

    async def _step(self) -> float:
        """One request; the seconds until the next."""
        if self.reflection.next is Next.LIST:
            body = await self._api.listed(self.resource, self.reflection.query)
            changes = self.reflection.page(body)
            self._heard()
            if changes is not None:
                self.standing.synced = True
                self._told(changes)
            return 0.0
        return await self._watch()

    async def _watch(self) -> float:
        times, began, heard = self._times, self._clock(), False
        lasts_s = self._chance.randint(*times.watch_s)
        query = {**self.reflection.query, "timeoutSeconds": str(lasts_s)}
        silent_s = lasts_s + times.silent_s
        async with self._api.watched(self.resource, query, silent_s=silent_s) as lines:
            async for line in lines:
                found = self.reflection.line(line)
                if isinstance(found, Failed):
                    return self._ended_by(found)
                heard, self._expiries = True, 0
                self._heard()
                if found:
                    self._told(found)
        if not heard and self._clock() - began < 1.0:
            return self._failed(f"the watch of {self.resource.plural} ends at once")
        self._heard()
        return 0.0

    def _ended_by(self, failed: Failed) -> float:
        if failed.code == 410:
            return self._expired()
        what = f"cannot watch {self.resource.plural}: {failed.code} {failed.message}"
        return self._failed(what)

    def _expired(self) -> float:
        """A version that is forgotten is no fault; that of a list just made should not be."""
        times = self._times
        self._expiries += 1
        if self._expiries == 1:
            return 0.0
        doubled = 2.0 ** min(self._expiries, 16)
        return min(times.longest_pause_s, times.first_pause_s * doubled)

    def _heard(self) -> None:
        self._pause_s = 0.0
        self._absent_since = None
        standing = self.standing
        standing.heard_at, standing.installed = self._clock(), True
        if standing.fault is not None:
            log.info("the API server answers again", resource=self.resource.plural)
            standing.fault = None

    def _refused(self, refused: Refused) -> float:
        if refused.code == 404 and not refused.typed:
            self.standing.counts["absent"] += 1
            return self._absent(str(refused))
        if refused.code == 410:
            self.reflection.expired()
            return self._expired()
        self.standing.counts["refused"] += 1
        if refused.code == 403 and self._optional:
            self.standing.synced = True
        return max(refused.retry_after_s, self._failed(str(refused)))

    def _absent(self, said: str) -> float:
        """There is no such kind, or not yet."""
        now, times, standing = self._clock(), self._times, self.standing
        if self._absent_since is None:
            self._absent_since = now
        known = standing.installed and self.reflection.listed
        if known and now - self._absent_since < times.believed_s:
            self.reflection.expired()
        else:
            standing.installed = False
            standing.synced = standing.synced or self._optional
            self._told(self.reflection.absent())
        if self._optional:
            return times.absent_s
        self._fault(f"{said}: install its CustomResourceDefinition")
        return min(times.absent_s, self._next_pause())

    def _failed(self, said: str) -> float:
        self._fault(said)
        return self._next_pause()

    def _fault(self, said: str) -> None:
        """Told once as long as it stays the same."""
        if self.standing.fault != said:
            log.warning("Kubernetes", fault=said, optional=self._optional)
            self.standing.fault = said

    def _next_pause(self) -> float:
        times = self._times
        self._pause_s = min(times.longest_pause_s, max(times.first_pause_s, 2 * self._pause_s))
        return self._pause_s * (0.5 + self._chance.random() / 2)
