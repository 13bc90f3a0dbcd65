"""A routed request on its way: passes on what the stream sees of its answer, each thing once."""

from collections.abc import Callable, Sequence

from epp.bodies.usage import Usage
from epp.framework import Request

from .neighbours import Observer, Pool


class Flight:
    """Implements `exchange.Progress`. A request that was not charged tells the pool nothing."""

    __slots__ = (
        "_address",
        "_charged",
        "_clock",
        "_first",
        "_headers",
        "_observers",
        "_over",
        "_pool",
        "_request",
    )

    def __init__(
        self,
        *,
        pool: Pool,
        observers: Sequence[Observer],
        clock: Callable[[], float],
        request: Request,
        address: str,
        charged: bool,
    ) -> None:
        self._pool = pool
        self._observers = observers
        self._clock = clock
        self._request = request
        self._address = address
        self._charged = charged
        self._headers = False
        self._first = False
        self._over = False

    def response_headers(
        self, status: int, served: str | None, *, streaming: bool = False
    ) -> Sequence[tuple[str, str]]:
        if self._headers or self._over:
            return ()
        self._headers = True
        if self._charged:
            self._pool.response_headers(self._request.id, status, self._clock())
        as_told = served is None or served == self._address
        for observer in self._observers:
            observer.answered(self._request, status, as_told=as_told)
        return ()

    def body(self, size: int) -> None:
        if self._first or self._over or not size:
            return
        self._first = True
        if self._charged:
            self._pool.first_byte(self._request.id, self._clock())

    def usage(self, usage: Usage) -> None:
        """Nobody asks yet."""

    def finished(self) -> None:
        if self._over:
            return
        self._over = True
        if self._charged:
            self._pool.finished(self._request.id, self._clock())

    def reset(self, *, answered: bool) -> None:
        if self._over:
            return
        self._over = True
        if self._charged:
            self._pool.reset(self._request.id, answered=answered, now=self._clock())
