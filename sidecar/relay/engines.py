"""Connections to engines and to other sidecars: requests out, answers in.

Rules
 1. A connection carries one exchange at a time. It is kept for another one only when both messages
    were whole, the engine means to keep it, and not a byte came behind the answer.
 2. An answer may begin before the request was sent to its end; the rest of the request still goes
    out until the answer is closed.
 3. Nobody is read faster than somebody takes it: `HELD` bytes wait at most, besides one read.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from sidecar.http import headers
from sidecar.http.client import Call, Head, Listener, Take, TakeChunk, Wait
from sidecar.http.refusals import ENGINE_GARBLED, ENGINE_LOST, LegError
from sidecar.http.upload import Content, Upload
from sidecar.proxy import Limits
from sidecar.transfer.targets import Target

from . import framing
from .answers import AnswerReader, Event
from .connection import Connection, Outlet
from .requests import END

HELD = 256 << 10
"""Bytes of an answer that wait for whoever takes them before the engine is not read on."""
JOINED = 64 << 10
"""Up to here a body is copied behind its head, which costs less than a second buffer."""


class EngineAnswer:
    """A `http.client.Answer`. Its connection feeds it."""

    __slots__ = (
        "_connection",
        "_error",
        "_head",
        "_held",
        "_over",
        "_pieces",
        "_take",
        "_take_chunk",
        "_waiter",
    )

    def __init__(self, connection: "EngineConnection") -> None:
        self._connection: EngineConnection | None = connection
        self._head: Head | None = None
        self._pieces: deque[bytes] = deque()
        self._held = 0
        self._take: Take | None = None
        self._take_chunk: TakeChunk | None = None
        self._over = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def head(self) -> Head:
        assert self._head is not None
        return self._head

    async def headed(self) -> None:
        """Wait for the head. Raises LegError."""
        while self._head is None:
            if self._error is not None:
                raise self._error
            await self._wait()

    async def next(self) -> bytes:
        while not self._pieces:
            if self._error is not None:
                raise self._error
            if self._over:
                return b""
            await self._wait()
        return self._next()

    async def pump(self, take: Take, chunk: TakeChunk) -> None:
        while self._pieces:
            wait = take(self._next())
            if wait is not None:
                await wait
        self._take, self._take_chunk = take, chunk
        try:
            while not self._over and self._error is None:
                await self._wait()
        finally:
            self._take = self._take_chunk = None
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.drop()

    # --- what the connection tells

    def begin(self, head: Head) -> None:
        self._head = head
        self._wake()

    def piece(self, data: bytes) -> None:
        if self._take is None:
            self._pieces.append(data)
            self._held += len(data)
            if self._held > HELD:
                self._read_on(False)
            self._wake()
            return
        try:
            wait = self._take(data)
        except Exception as error:  # noqa: BLE001 - edge of a callback: whoever pumps gets it
            self._take = self._take_chunk = None
            self.fail(error)
            return
        if wait is not None:
            self._after(wait)

    def chunk(self, data: bytes, size: int) -> bool:
        if self._take_chunk is None:
            return False
        try:
            wait = self._take_chunk(data, size)
        except Exception as error:  # noqa: BLE001 - edge of a callback: whoever pumps gets it
            self._take = self._take_chunk = None
            self.fail(error)
            return True
        if wait is False:
            return False
        if wait is not None:
            self._after(wait)
        return True

    def whole(self, head: Head, body: bytes) -> None:
        self._head = head
        self._pieces.append(body)
        self._held += len(body)
        self.end()

    def end(self) -> None:
        """The answer is complete, and the connection no longer its own."""
        self._over = True
        self._connection = None
        self._wake()

    def fail(self, error: Exception) -> None:
        """The answer will not be complete. The first reason stands."""
        if not self._over and self._error is None:
            self._error = error
            self._wake()

    # ---

    def _after(self, wait: Wait) -> None:
        """Read on when the client's connection has room again."""
        assert isinstance(wait, asyncio.Future)
        self._read_on(False)
        wait.add_done_callback(lambda _: self._read_on(True))

    def _next(self) -> bytes:
        data = self._pieces.popleft()
        full, self._held = self._held > HELD, self._held - len(data)
        if full and self._held <= HELD:
            self._read_on(True)
        return data

    def _read_on(self, reads: bool) -> None:
        if self._connection is not None:
            self._connection.read_on(reads)

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class EngineConnection(Connection):
    """One connection. `spare` is called when it may be used again, `gone` when it ended."""

    def __init__(
        self,
        to: Target,
        limits: Limits,
        outlet: Outlet,
        *,
        secure: bool,
        spare: Callable[["EngineConnection"], None],
        gone: Callable[["EngineConnection"], None],
    ) -> None:
        super().__init__(outlet)
        self.to = to
        self.secure = secure
        """Whether it speaks TLS: what is meant for such a connection passes on no other."""
        self.since = 0.0
        """When it was put away last; kept by whoever keeps it."""
        self._spare = spare
        self._gone = gone
        self._reader = AnswerReader(limits)
        self._answer: Listener | None = None
        self._sending: asyncio.Task[None] | None = None

    @property
    def usable(self) -> bool:
        return self._answer is None and not self._transport.is_closing()

    @property
    def silent(self) -> bool:
        """Whether not a byte of an answer came to the last request."""
        return not self._reader.seen

    async def ask(self, call: Call) -> EngineAnswer:
        """Send a request and wait for the head of its answer. Raises LegError."""
        answer = EngineAnswer(self)
        self.ask_for(answer, call)
        try:
            await answer.headed()
        except BaseException:
            answer.close()
            raise
        return answer

    def ask_for(self, listener: Listener, call: Call) -> None:
        """Send a request, and tell `listener` what comes; at once if the connection is lost."""
        if self.lost:  # a new one may be, when its engine is about to end
            listener.fail(LegError(ENGINE_LOST))
            return
        self._reader.begin(call.method)
        self._answer = listener
        upload = call.upload
        chunked = isinstance(upload, Upload) and headers.length_of(call.fields) is None
        if call.lines is not None:
            head = framing.written_head(call.method, call.target, call.lines)
        else:
            head = framing.request_head(
                call.method, call.target, call.fields, host=str(self.to), chunked=chunked
            )
        if isinstance(upload, Content):
            if len(upload.body) > JOINED:
                self.write(head)
                self.write(upload.body)
            else:
                self.write(head + upload.body)
        else:
            self.write(head)
        if isinstance(upload, Upload):
            loop = asyncio.get_running_loop()
            self._sending = loop.create_task(self._send(upload, listener, chunked=chunked))

    def drop(self) -> None:
        """End the connection at once."""
        self._answer = None
        if self._sending is not None:
            self._sending.cancel()
        self.abort()

    # --- asyncio's callbacks

    def data_received(self, data: bytes) -> None:
        answer, reader = self._answer, self._reader
        if answer is None:
            self.abort()  # nobody asked
            return
        size = reader.chunk(data)
        if size and answer.chunk(data, size):
            return
        events = reader.feed(data)
        if len(events) == 3 and events[2] is END:
            head, body, _ = events
            if isinstance(head, Head) and isinstance(body, bytes):
                self._settle(reader)
                answer.whole(head, body)
                return
        for event in events:
            if type(event) is bytes:
                answer.piece(event)
            else:
                self._tell(answer, event, headed=reader.headed)
            if self._answer is not answer:
                return  # its listener has had enough
        if reader.over and self._answer is answer:
            self._settle(reader)
            answer.end()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._gone(self)
        answer, reader = self._answer, self._reader
        self._answer = None
        if self._sending is not None:
            self._sending.cancel()
        ended = error is None and reader.eof() is END
        reader.drop()
        if answer is None:
            return
        if ended:
            answer.end()
        else:
            answer.fail(LegError(ENGINE_LOST))

    # ---

    def _tell(self, answer: Listener, event: Event, *, headed: bool) -> None:
        if isinstance(event, Head):
            answer.begin(event)
        elif event is not END:
            self._give_up(answer, LegError(ENGINE_LOST if headed else ENGINE_GARBLED))

    def _give_up(self, answer: Listener, error: LegError) -> None:
        """The answer will not be complete, and the connection is of no use any more."""
        if self._answer is answer:
            self.drop()
            answer.fail(error)

    def _settle(self, reader: AnswerReader) -> None:
        """The answer is over: keep the connection if it can carry another one."""
        self._answer = None
        sent = self._sending is None or self._sending.done()
        if reader.reusable and sent and not self._transport.is_closing():
            self._sending = None
            self.read_on(True)
            self._spare(self)
        else:
            self.drop()

    async def _send(self, upload: Upload, answer: Listener, *, chunked: bool) -> None:
        """Send a body as it comes from the client."""
        try:
            async for piece in upload.pieces():
                if piece:
                    self.write(framing.chunk(piece) if chunked else piece)
                if self._drained is not None:
                    await asyncio.shield(self._drained)
        except LegError as error:  # the client's fault: this request ends nowhere
            self._give_up(answer, error)
            return
        if chunked:
            self.write(framing.LAST_CHUNK)
