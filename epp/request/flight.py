"""A routed request on its way: passes on what the stream sees of its answer, each thing once."""

import re
from collections.abc import Callable, Sequence
from functools import partial

from epp.bodies.usage import Usage
from epp.framework import Endpoint, EndpointId, Follower, Marker, Request

from . import conformance
from .attempts import Attempt
from .ballot import Ballot, Why
from .neighbours import Meter, Observer, Pool
from .plan.live import Named

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_VALUE = re.compile(r"[\x20-\x7e]{0,4096}")


class Flight:
    """Implements `exchange.Progress`. A request that was not charged tells the pool nothing."""

    __slots__ = (
        "_answer_headers",
        "_attempt",
        "_ballot",
        "_charged",
        "_chosen",
        "_clock",
        "_first",
        "_followers",
        "_good",
        "_headers",
        "_markers",
        "_meter",
        "_observers",
        "_over",
        "_pool",
        "_request",
        "_say_served",
        "_shadow",
        "_told",
        "_usage",
    )

    def __init__(
        self,
        *,
        pool: Pool,
        observers: Sequence[Observer],
        clock: Callable[[], float],
        request: Request,
        chosen: Sequence[Endpoint],
        told: Sequence[str],
        charged: bool,
        ballot: Ballot,
        attempt: Attempt,
        meter: Meter | None = None,
        say_served: bool = False,
        followers: Sequence[Named[Follower]] = (),
        markers: Sequence[Named[Marker]] = (),
        answer_headers: Sequence[tuple[str, str]] = (),
        shadow: bool = False,
    ) -> None:
        """`chosen`: the destinations, best first. `told`: the addresses that the gateway knows them
        by. `meter`: None where the answer's body does not come through us. `say_served`: tell the
        client who served, for conformance tests. `followers` hear who served in place of the first,
        `markers` have headers set in the answer, beside
        `answer_headers`. `attempt` is told how it goes. `shadow`: the gateway was told of nobody.
        """
        self._pool = pool
        self._observers = observers
        self._clock = clock
        self._request = request
        self._chosen = chosen
        self._told = told
        self._ballot = ballot
        self._attempt = attempt
        self._followers = followers
        self._markers = markers
        self._answer_headers = tuple(answer_headers)
        self._charged = charged
        self._meter = meter
        self._say_served = say_served
        self._shadow = shadow
        self._good = False
        self._usage = Usage()
        self._headers = False
        self._first = False
        self._over = False
        attempt.routed(chosen[0].id, self._give_back)

    def response_headers(
        self, status: int, served: str | None, *, streaming: bool = False
    ) -> Sequence[tuple[str, str]]:
        if self._headers or self._over:
            return ()
        self._headers = True
        elsewhere = bool(served) and served != self._told[0]
        address = self._address(served) if served and elsewhere else ""
        now = self._clock()
        if self._charged:
            if address:
                self._pool.served_by(self._request, address, self._chosen, now)
            self._pool.response_headers(self._request.id, status, now, streaming=streaming)
        self._attempt.answered(status, self._asked(served or "", address, now), now)
        self._good = 0 < status < 400
        if address and self._good and self._followers:
            self._follow(address, now)
        if self._meter is not None and self._good and streaming:
            self._meter.streams()
        for observer in self._observers:
            if self._shadow:
                observer.shadowed(self._request, agreed=not elsewhere if served else None)
            observer.answered(self._request, status, as_told=self._shadow or not elsewhere)
        marks = self._answer_headers
        if self._markers:
            marks = (*marks, *self._marks(address, now))
        return (*marks, conformance.served_header(served)) if self._say_served else marks

    def _address(self, served: str) -> str:
        """The endpoint that is meant by an address that the gateway was told, or knows."""
        if served in self._told:
            return self._chosen[self._told.index(served)].address
        return served

    def _asked(self, served: str, address: str, now: float) -> Sequence[EndpointId]:
        """Those that the request has been sent to: the gateway goes down the list."""
        if served in self._told:
            return [one.id for one in self._chosen[: self._told.index(served) + 1]]
        other = self._pool.at(address, now) if address else None
        return [self._chosen[0].id, *(() if other is None else (other.id,))]

    def _follow(self, address: str, now: float) -> None:
        """Tell plugins of whom the gateway took in place of the first."""
        first, other = self._chosen[0], self._pool.at(address, now)
        if other is None or other.id == first.id:
            return
        self._ballot.begin()
        for one in self._followers:
            self._ballot.tell(one.name, partial(one.plugin.served, self._request, first, other))

    def _give_back(self) -> None:
        """The gateway has sent the request again: its load is where that goes."""
        if self._charged:
            self._charged = False
            self._pool.reset(self._request.id, answered=False, now=self._clock())

    def _marks(self, address: str, now: float) -> Sequence[tuple[str, str]]:
        """What plugins have to say to the client of the endpoint at `address`; empty: the first."""
        served = self._pool.at(address, now) if address else self._chosen[0]
        if served is None:
            return ()
        found: list[tuple[str, str]] = []
        self._ballot.begin()
        for one in self._markers:
            marks = self._ballot.ask(one.name, partial(_listed, one.plugin, self._request, served))
            for mark in marks or ():
                if _is_mark(mark):
                    found.append((mark[0].lower(), mark[1]))
                else:
                    self._ballot.blame(one.name, Why.NO_WORD)
        return found

    def body(self, size: int) -> None:
        if self._over or not size or (self._first and self._meter is None):
            return
        now = self._clock()
        if self._meter is not None:
            self._meter.piece(size, now)
        if not self._first:
            self._first = True
            if self._charged:
                self._pool.first_byte(self._request.id, now)

    def usage(self, usage: Usage) -> None:
        self._usage = usage

    def finished(self) -> None:
        if self._over:
            return
        self._over = True
        now = self._clock()
        if self._meter is not None:
            self._meter.end(now, self._usage, good=self._good)
        if self._charged:
            self._pool.finished(self._request.id, now)
        self._attempt.over(now)

    def reset(self, *, answered: bool) -> None:
        if self._over:
            return
        self._over = True
        now = self._clock()
        if self._meter is not None:
            self._meter.end(now, self._usage, good=False)
        if self._charged:
            self._pool.reset(self._request.id, answered=answered, now=now)
        self._attempt.over(now, unanswered=not answered)


def _listed(marker: Marker, request: Request, served: Endpoint) -> list[tuple[str, str]]:
    return list(marker.marks(request, served))


def _is_mark(mark: object) -> bool:
    """Whether it can be a header of the answer."""
    if not (isinstance(mark, tuple) and len(mark) == 2):
        return False
    name, value = mark
    return (
        isinstance(name, str)
        and isinstance(value, str)
        and _NAME.fullmatch(name) is not None
        and _VALUE.fullmatch(value) is not None
    )
