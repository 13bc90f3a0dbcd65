"""A request that a gateway sends again: one request, several streams. Pure.

A gateway that retries below its filters goes down the list of destinations and opens no new stream:
then the answer's headers say who served. One that retries above them (a gateway in front of it, a
redirect inside it, another backend of its route) sends all of it again under the same
`x-request-id`. To the client that is one request. Its time to the first token runs on from its
first arrival, the load of the earlier attempt is given back, and whoever failed it is asked again
only where nobody else is left.

The id is a client's word. So a stream is a further attempt only where path and body are the same
as well, where the earlier one has not begun to answer, and MAX_ATTEMPTS times at most: nobody takes
the load of running requests off the books by saying one id again and again.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

import xxhash

from epp import protocol
from epp.framework import EndpointId

from .exchange import Arrival
from .hints import Hints
from .understanding import Understood

MAX_ATTEMPTS = 4
"""Streams that count as one request; more of the same id are requests of their own."""
MAX_REQUESTS = 10_000
"""Requests that are remembered; beyond, the oldest are forgotten, and a retry of one is new."""
MAX_ID = 256
"""Characters of an id; a request with a longer one is not remembered."""
KEPT_S = 30.0
"""How long after the end of an attempt another one may follow. Gateways wait for less than one
second between two."""


@dataclass(slots=True, eq=False)
class _Known:
    """One request, from its first attempt until an answer begins."""

    name: str
    """Its id; empty: it is not remembered."""
    digest: int
    first_at: float
    last_at: float
    attempts: int = 0
    failed: list[EndpointId] = field(default_factory=list[EndpointId])
    last: "Attempt | None" = None


class Attempt:
    """One stream of a request. A context manager around the decision: an attempt that was not
    `routed` in it is over."""

    __slots__ = ("_chosen", "_known", "_over", "_owner", "_release", "_superseded", "at", "number")

    def __init__(self, owner: "Attempts", known: _Known, at: float) -> None:
        self.at = at
        """When this stream's request had arrived."""
        known.attempts += 1
        known.last = self
        self.number = known.attempts
        """1 for the first."""
        self._owner = owner
        self._known = known
        self._release: Callable[[], None] | None = None
        self._chosen: EndpointId | None = None
        self._superseded = False
        self._over = False

    @property
    def is_over(self) -> bool:
        return self._over

    @property
    def failed(self) -> tuple[EndpointId, ...]:
        """Who failed earlier attempts of this request."""
        return tuple(self._known.failed)

    @property
    def since_first_s(self) -> float:
        """Between the arrivals of the first attempt and of this one."""
        return self.at - self._known.first_at

    def remaining(self, said: Hints) -> Hints:
        """The hints with what is left of the time to the first token.

        A gateway repeats that limit in each attempt. `timeout_s` it counts down by itself.
        """
        if said.slo_ttft_s is None or self.number == 1:
            return said
        return replace(said, slo_ttft_s=max(0.0, said.slo_ttft_s - self.since_first_s))

    def known_to(self, understood: Understood) -> Understood:
        """The request with what earlier attempts say of it."""
        if self.number == 1:
            return understood
        request = replace(understood.request, attempt=self.number, failed_at=self.failed)
        note = f"attempt {self.number}, {self.since_first_s:.3f} s after the first"
        return replace(understood, request=request, notes=(*understood.notes, note))

    def routed(self, chosen: EndpointId, release: Callable[[], None]) -> None:
        """It goes there; `release` gives back what was charged for it."""
        self._chosen, self._release = chosen, release
        if self._superseded:
            release()

    def answered(self, status: int, asked: Collection[EndpointId], now: float) -> None:
        """An answer began. `asked`: those that the gateway has sent it to, as far as we know."""
        if status < 500 and status != 429:
            self._owner.forget(self._known)
            self._release = None
        else:
            self._fail(asked)
        self._known.last_at = now

    def over(self, now: float, *, unanswered: bool = False) -> None:
        """Its stream is over. `unanswered`: whoever was asked has not even begun to answer."""
        if self._over:
            return
        self._over = True
        self._known.last_at = now
        if unanswered and self._chosen is not None:
            self._fail((self._chosen,))

    def supersede(self) -> None:
        """The gateway has given it up, and sent the request again. What it charged may be there
        still, though its stream is over: an answer whose end nobody sees is thought to run on."""
        self._superseded = True
        if self._chosen is not None and not self._over:
            self._fail((self._chosen,))
        if self._release is not None:
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._chosen is None:
            self.over(self.at)

    def _fail(self, asked: Collection[EndpointId]) -> None:
        self._known.failed += [one for one in asked if one not in self._known.failed]


class Attempts:
    """The requests of the last while that nobody has begun to answer. Belongs to one event loop."""

    def __init__(self, limit: int = MAX_REQUESTS) -> None:
        self._limit = limit
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self.forgotten = 0
        """Requests that had to be forgotten for others."""

    def __len__(self) -> int:
        return len(self._known)

    def begin(self, arrival: Arrival, now: float) -> Attempt:
        """A stream brings a request."""
        self._let_go(now)
        name = arrival.headers.get(protocol.REQUEST_ID, "")
        if len(name) > MAX_ID:
            name = ""
        known = self._known.get(name)
        digest = _digest(arrival) if name else 0
        if known is None or known.digest != digest or _is_past(known, now):
            known = self._remember(_Known(name, digest, now, now))
        elif known.attempts >= MAX_ATTEMPTS:
            known = _Known("", 0, now, now)
        elif known.last is not None:
            known.last.supersede()
        return Attempt(self, known, now)

    def forget(self, known: _Known) -> None:
        """An answer has begun: nobody sends it again. Nothing of it then waits for the garbage
        collector, which would find a cycle here."""
        known.last = None
        if self._known.get(known.name) is known:
            del self._known[known.name]

    def _remember(self, known: _Known) -> _Known:
        if known.name:
            self._known[known.name] = known
            self._known.move_to_end(known.name)
        if len(self._known) > self._limit:
            self._known.popitem(last=False)
            self.forgotten += 1
        return known

    def _let_go(self, now: float) -> None:
        while self._known:
            oldest = next(iter(self._known.values()))
            if not _is_past(oldest, now):
                return
            self.forget(oldest)


def _digest(arrival: Arrival) -> int:
    """Of what a gateway does not change when it sends a request again."""
    return xxhash.xxh3_64_intdigest(arrival.body, hash(arrival.path) & 0xFFFFFFFF)


def _is_past(known: _Known, now: float) -> bool:
    runs = known.last is not None and not known.last.is_over
    return not runs and now - known.last_at > KEPT_S
