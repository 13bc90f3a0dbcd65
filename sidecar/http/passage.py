"""Hands an answer to a client, the engine's or our own, and tells exchange and journal of it."""

from collections.abc import Callable

from sidecar.proxy import Journal, Outcome

from . import headers, refusals
from .client import Answer, Client, Head, Wait
from .exchange import Exchange
from .passing import Passing
from .refusals import Refused

_REQUEST_ID = b"x-request-id"


class Passage:
    """The way of one exchange's answer."""

    __slots__ = ("_client", "_clock", "_exchange", "_journal", "_progress", "_stripped")

    def __init__(
        self,
        client: Client,
        exchange: Exchange,
        journal: Journal,
        clock: Callable[[], float],
        stripped: Callable[[], object],
    ) -> None:
        """`stripped` is called when an answer held the parameters."""
        self._client = client
        self._exchange = exchange
        self._journal = journal
        self._clock = clock
        self._stripped = stripped
        self._progress: Callable[[], None] = lambda: None

    @property
    def begun(self) -> bool:
        """Whether the client has got a byte."""
        return self._client.begun

    async def run(
        self,
        head: Head,
        answer: Answer,
        *,
        begun: bytes = b"",
        progress: Callable[[], None] = lambda: None,
        trusted: bool = False,
    ) -> None:
        """Pass an answer on to its end, after what was `begun` of its body.

        A `trusted` caller gets the parameters, too. Raises LegError when the body breaks off,
        ConnectionError when the client has left.
        """
        self._progress = progress
        passing = self._passing(head, trusted=trusted)
        if passing.held is None:
            await _done(self._begin(head, passing))
        progress()
        if begun:
            await _done(self._piece(passing, begun))
        await answer.pump(lambda piece: self._piece(passing, piece))
        await self._finish(head, passing)

    async def whole(self, head: Head, body: bytes) -> None:
        """Pass on an answer that is here already. Raises ConnectionError."""
        passing = self._passing(head, trusted=False)
        if passing.held is None:
            await _done(self._begin(head, passing))
        await _done(self._piece(passing, body))
        await self._finish(head, passing)

    def refuse(self, refused: Refused, outcome: Outcome = Outcome.ENGINE_ERROR) -> None:
        """The exchange ends with an answer of our own."""
        self._exchange.outcome, self._exchange.status = outcome, refused.status
        self._client.own(refused.status, refusals.body_of(refused), close=refused.close)

    def cut(self, outcome: Outcome) -> None:
        """An answer that has begun cannot go on: the client must not take it for whole."""
        self._exchange.outcome = outcome
        self._client.cut()

    def _passing(self, head: Head, *, trusted: bool) -> Passing:
        exchange = self._exchange
        kind, coding = head.value("content-type"), head.value("content-encoding")
        exchange.answered(head.status, kind, coding)
        return Passing(
            head,
            kind,
            coding,
            bodiless=self._client.incoming.method == "HEAD",
            hides_usage=exchange.hides_usage,
            trusted=trusted,
        )

    def _begin(self, head: Head, passing: Passing) -> Wait:
        fields = headers.for_client(head.fields)
        if head.request_id is not None:
            own = head.request_id.encode("latin-1", "replace")
            fields = headers.replaced(fields, _REQUEST_ID, own)
        return self._client.begin(head.status, head.reason, fields, passing.length)

    def _piece(self, passing: Passing, piece: bytes) -> Wait:
        exchange = self._exchange
        ttft_s = exchange.piece(piece, self._clock())
        if ttft_s is not None and exchange.decision_id and exchange.status < 400:
            self._journal.first_token(exchange.decision_id, ttft_s)
        out = passing.feed(piece)
        self._progress()
        return self._client.write(out) if out else None

    async def _finish(self, head: Head, passing: Passing) -> None:
        rest = passing.finish()
        if passing.stripped:
            self._stripped()
        if passing.held is not None:
            await _done(self._begin(head, passing))
        if rest:
            await _done(self._client.write(rest))
        await _done(self._client.end())
        self._exchange.completed()


async def _done(wait: Wait) -> None:
    if wait is not None:
        await wait
