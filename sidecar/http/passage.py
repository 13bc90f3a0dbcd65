"""Hands an answer to a client, the engine's or our own, and tells exchange and journal of it."""

from collections.abc import Callable, Iterator
from typing import Literal

from sidecar.proxy import Journal, Outcome
from sidecar.transfer.redaction import may_name_in_answer

from . import headers, refusals
from .client import Answer, Client, Head, NearClient, Wait
from .exchange import Exchange
from .passing import BODILESS, Passing, say_nothing
from .refusals import Refused

_REQUEST_ID = b"x-request-id"


class Passage:
    """The way of one exchange's answer."""

    __slots__ = (
        "_by",
        "_client",
        "_clock",
        "_exchange",
        "_head",
        "_journal",
        "_passing",
        "_stripped",
        "moved",
    )
    _head: Head
    _passing: Passing

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
        self._by = False  # whether chunks may go by
        self.moved = 0.0
        """When the last bytes of the answer came."""

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
        await _done(self.open(head, trusted=trusted))
        progress()
        if begun:
            await _done(self.take(begun))

        def take(piece: bytes) -> Wait:
            progress()
            return self.take(piece)

        def chunk(data: bytes, size: int) -> Wait | Literal[False]:
            progress()
            return self.chunk(data, size)

        await answer.pump(take, chunk)
        await self._close()

    async def whole(self, head: Head, body: bytes) -> None:
        """Pass on an answer that is here already. Raises ConnectionError."""
        await _done(self.open(head))
        await _done(self.take(body))
        await self._close()

    # --- step by step; each raises ConnectionError when the client has left

    def open(self, head: Head, *, trusted: bool = False) -> Wait:
        """The answer begins. The client hears of it now, or once its length is known."""
        self._head = head
        passing = self._passing = self._of(head, trusted=trusted)
        return self._begin() if passing.held is None else None

    def take(self, piece: bytes) -> Wait:
        """The next bytes of the body."""
        exchange = self._exchange
        self._measure(piece)
        passing = self._passing
        out = passing.feed(piece)
        wait = self._client.write(out) if out else None
        self._by = passing.rests and exchange.rests
        return wait

    def chunk(self, data: bytes, size: int) -> Wait | Literal[False]:
        """The next bytes of the body, `size` of them, in the one chunk in which they came.

        It goes by as it is. False when it has to be looked at; nothing was done.
        """
        if not self._by or not say_nothing(data):
            return False
        wait = self._client.relay(data)
        if wait is not False:
            now = self.moved = self._clock()
            meter = self._exchange.meter
            if meter is not None:
                meter.piece(size, now)
        return wait

    def at_once(self, head: Head, body: bytes, to: NearClient) -> Wait:
        """Pass on an answer that is here: `open`, `take` and `closing` in one, `to` the client."""
        shape = head.shape
        if (
            shape is None
            or not shape.is_plain
            or head.request_id is not None
            or head.status in BODILESS
            or self._client.incoming.method == "HEAD"
        ):
            return self._step_by_step(head, body)
        out, exchange = body, self._exchange
        if exchange.hides_usage or exchange.recount is not None or may_name_in_answer(body):
            passing = self._of(head, trusted=False)
            out = passing.whole(body)
            if passing.stripped:
                self._stripped()
        else:  # most: nothing would be taken out
            content = head.content
            exchange.answered(head.status, content.kind, content.coding)
        self._measure(body)
        lines = shape.client_lines(head.worth)
        wait = to.answer(head.status, head.reason, lines, out, dated=shape.is_dated)
        exchange.completed()
        return wait

    def closing(self) -> Iterator[Wait]:
        """The body is complete: what is written last, step by step. To be run to its end."""
        passing = self._passing
        rest = passing.finish()
        if passing.stripped:
            self._stripped()
        if passing.held is not None:
            yield self._begin()
        if rest:
            yield self._client.write(rest)
        yield self._client.end()
        self._exchange.completed()

    def refuse(self, refused: Refused, outcome: Outcome = Outcome.ENGINE_ERROR) -> None:
        """The exchange ends with an answer of our own."""
        self._exchange.outcome, self._exchange.status = outcome, refused.status
        self._client.own(refused.status, refusals.body_of(refused), close=refused.close)

    def cut(self, outcome: Outcome) -> None:
        """An answer that has begun cannot go on: the client must not take it for whole."""
        self._exchange.outcome = outcome
        self._client.cut()

    def _measure(self, piece: bytes) -> None:
        exchange = self._exchange
        now = self.moved = self._clock()
        ttft_s = exchange.piece(piece, now)
        if ttft_s is not None and exchange.decision_id and exchange.status < 400:
            self._journal.first_token(exchange.decision_id, ttft_s)

    def _step_by_step(self, head: Head, body: bytes) -> Wait:
        self.open(head)
        self.take(body)
        wait: Wait = None
        for step in self.closing():
            wait = step
        return wait

    async def _close(self) -> None:
        for wait in self.closing():
            await _done(wait)

    def _of(self, head: Head, *, trusted: bool) -> Passing:
        exchange = self._exchange
        content = head.content
        exchange.answered(head.status, content.kind, content.coding)
        return Passing(
            head.status,
            content,
            bodiless=self._client.incoming.method == "HEAD",
            hides_usage=exchange.hides_usage,
            recount=exchange.recount,
            trusted=trusted,
        )

    def _begin(self) -> Wait:
        head = self._head
        fields = headers.for_client(head.fields)
        if head.request_id is not None:
            own = head.request_id.encode("latin-1", "replace")
            fields = headers.replaced(fields, _REQUEST_ID, own)
        length, held = self._passing.length, self._passing.held
        return self._client.begin(
            head.status, head.reason, fields, length, follows=held is not None
        )


async def _done(wait: Wait) -> None:
    if wait is not None:
        await wait
