"""A routed request on its way: passes on what the stream sees of its answer, each thing once."""

from collections.abc import Callable, Sequence

from epp.bodies.usage import Usage
from epp.framework import Endpoint, Request

from . import conformance
from .neighbours import Meter, Observer, Pool


class Flight:
    """Implements `exchange.Progress`. A request that was not charged tells the pool nothing."""

    __slots__ = (
        "_charged",
        "_chosen",
        "_clock",
        "_first",
        "_good",
        "_headers",
        "_meter",
        "_observers",
        "_over",
        "_pool",
        "_request",
        "_say_served",
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
        charged: bool,
        meter: Meter | None = None,
        say_served: bool = False,
    ) -> None:
        """`chosen`: the destinations, best first. `meter`: None where the answer's body does not
        come through us. `say_served`: tell the client who served, for conformance tests."""
        self._pool = pool
        self._observers = observers
        self._clock = clock
        self._request = request
        self._chosen = chosen
        self._charged = charged
        self._meter = meter
        self._say_served = say_served
        self._good = False
        self._usage = Usage()
        self._headers = False
        self._first = False
        self._over = False

    def response_headers(
        self, status: int, served: str | None, *, streaming: bool = False
    ) -> Sequence[tuple[str, str]]:
        if self._headers or self._over:
            return ()
        self._headers = True
        elsewhere = bool(served) and served != self._chosen[0].address
        if self._charged:
            now = self._clock()
            if served and elsewhere:
                self._pool.served_by(self._request, served, self._chosen, now)
            self._pool.response_headers(self._request.id, status, now)
        self._good = 0 < status < 400
        if self._meter is not None and self._good and streaming:
            self._meter.streams()
        for observer in self._observers:
            observer.answered(self._request, status, as_told=not elsewhere)
        return (conformance.served_header(served),) if self._say_served else ()

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

    def reset(self, *, answered: bool) -> None:
        if self._over:
            return
        self._over = True
        now = self._clock()
        if self._meter is not None:
            self._meter.end(now, self._usage, good=False)
        if self._charged:
            self._pool.reset(self._request.id, answered=answered, now=now)
