"""Connections of clients: requests in, one after the other, answers out.

Rules
 1. One request is served at a time. What a client sends ahead waits as bytes, and reading stops.
 2. A client that ends its side of the connection has left, as with most proxies: nobody could tell
    it from one that died, and an engine would compute for nobody.
 3. An answer given before the request was complete ends the connection, but not before the client
    had `LINGER_S` to read it: bytes still under way would reset it otherwise.
"""

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Protocol

from sidecar.guard import address
from sidecar.http import refusals
from sidecar.http.client import Client, NearClient, Wait
from sidecar.http.direct import Over, Served
from sidecar.http.incoming import Incoming
from sidecar.http.intake import INLINE_BYTES
from sidecar.http.refusals import Refused
from sidecar.proxy import Limits
from sidecar.transfer.targets import Target

from .connection import Connection, Outlet
from .requests import END, Broken, Event, RequestReader
from .turns import Turn

LINGER_S = 2.0
"""How long to read on from a client that was answered before its body had ended."""
SLICE = 16 << 10
"""Bytes that are read at once outside a body of known length: so many short requests at most wait
for their turn."""
NEVER = float("inf")
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class House(Protocol):
    """What the connections of one listener share."""

    limits: Limits
    loop: asyncio.AbstractEventLoop
    outlet: Outlet

    def admit(self, connection: "ClientConnection") -> bool:
        """Whether there is room for one more."""

    def leave(self, connection: "ClientConnection") -> None: ...

    def date(self) -> bytes: ...

    def arrived(self) -> float:
        """The service's time."""

    def serve(self, client: Client) -> Coroutine[None, None, None]:
        """What a task has to do to serve a request."""

    def direct(self, client: NearClient, body: bytes, over: Over) -> Served | None:
        """Begin to serve a request whose body is here; None where only a task can."""


class ClientConnection(Connection):
    """One connection of a client."""

    def __init__(self, house: House, *, on_leg_port: bool) -> None:
        super().__init__(house.outlet)
        self._house = house
        self._limits = house.limits
        self._on_leg_port = on_leg_port
        self._arrived = house.arrived
        self._reader = RequestReader(house.limits)
        self._queue: deque[Event] = deque()
        self._ahead = b""  # bytes behind the queue that were not looked at
        self._turn: Turn | None = None
        self._task: asyncio.Task[None] | None = None  # serves the turn, or else
        self._direct: Served | None = None  # this does, or nobody yet: its body is still coming
        self._full = False  # the body's reader is behind
        self._closing = False  # no further request is served
        self._deadline = NEVER  # for what the client has to do next
        self._peer = ""
        self._at: Target | None = None

    # --- asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._house.admit(self):
            self._closing = True
            self.abort()
            return
        peer, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        self._peer = str(peer[0]) if isinstance(peer, tuple) else ""
        self._at = Target(address(own[0]), own[1]) if isinstance(own, tuple) else None
        self._deadline = self._house.loop.time() + self._limits.head_timeout_s

    def data_received(self, data: bytes) -> None:
        if self._closing and self._turn is None:
            return  # what an answered client still sends
        if self._queue or self._ahead:
            self._ahead += data
        else:
            self._look(data)
        self._heed()

    def eof_received(self) -> bool:
        if self._turn is not None:
            self.abort()
        return False  # asyncio closes the connection: the client has left

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._house.leave(self)
        self._reader.drop()
        self._queue.clear()
        self._ahead = b""
        if self._turn is not None:
            self._turn.fail(ConnectionResetError("the client has left"))
            self._need_task()  # whatever has begun is told of
        if self._direct is not None:
            self._direct.cancel()
        elif self._task is not None:
            self._house.loop.call_soon(self._task.cancel)  # not before it has begun

    # --- requests

    def _look(self, data: bytes) -> None:
        """Read bytes until a request is served and another one waits."""
        begins = self._turn is None and not self._reader.begun
        at = 0
        while at < len(data):
            end = min(at + max(SLICE, self._reader.left), len(data))
            events = self._reader.feed(data[at:end] if at or end < len(data) else data)
            at = end
            if len(events) == 3 and events[2] is END and self._turn is None:
                head, body, _ = events
                if isinstance(head, Incoming) and isinstance(body, bytes) and head.length:
                    self._take_whole(head, body)
                    continue
            for event in events:
                self._take(event)
            if self._queue:
                self._ahead = data[at:]
                break
        if begins and self._turn is None:
            self._deadline = self._house.loop.time() + self._limits.head_timeout_s

    def _take_whole(self, head: Incoming, body: bytes) -> None:
        """A request that is here completely, and is served next."""
        turn = self._begin(head)
        turn.complete = True
        self._direct = self._house.direct(turn, body, self._over)
        if self._direct is None:
            turn.piece(body)
            self._need_task()

    def _take(self, event: Event) -> None:
        turn = self._turn
        if self._queue or (turn is not None and turn.complete):
            self._queue.append(event)
        elif type(event) is bytes:
            if turn is not None:
                turn.piece(event)
        elif isinstance(event, Incoming):
            self._begin(event)
            short = event.length is not None and event.length <= INLINE_BYTES
            expects = event.shape is not None and b"expect" in event.shape.at
            if (event.has_body and not short) or expects:
                self._need_task()
        elif event is END:
            if turn is not None:
                turn.finish()
                if self._task is None:
                    self._direct = self._house.direct(turn, turn.whole(), self._over)
                    self._need_task()
        elif isinstance(event, Broken):
            self._broken(event.refused)

    def _begin(self, incoming: Incoming) -> Turn:
        incoming.at, incoming.peer = self._at, self._peer
        incoming.on_leg_port = self._on_leg_port
        incoming.arrived = self._arrived()
        turn = self._turn = Turn(self, incoming, keeps=incoming.keep_alive)
        return turn

    def _need_task(self) -> None:
        """The turn is a task's, unless it is somebody's already."""
        if self._turn is not None and self._direct is None and self._task is None:
            self._run(self._house.serve(self._turn))

    def _run(self, work: Coroutine[None, None, None]) -> None:
        self._task = self._house.loop.create_task(work)
        self._task.add_done_callback(self._served)

    def _over(self, rest: Coroutine[None, None, None] | None) -> None:
        """No task was needed, or is from here on."""
        self._direct = None
        if rest is None:
            self._end_turn()
        else:
            self._run(rest)

    def _broken(self, refused: Refused) -> None:
        """There is no further request on this connection."""
        if self._turn is not None:
            self._turn.fail(ConnectionResetError("the framing of the body broke"))
            self._need_task()
            return
        self._refuse(refused)

    def _refuse(self, refused: Refused) -> None:
        """Answer what cannot be read, and end the connection."""
        nothing = Incoming(method="GET", target="/", fields=())
        turn = Turn(self, nothing, keeps=False)
        turn.own(refused.status, refusals.body_of(refused))
        self._part(whole=False)

    def _served(self, task: "asyncio.Task[None]") -> None:
        """The exchange is over, however it ended."""
        self._task = None
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, ConnectionError):
            self._house.loop.call_exception_handler(
                {"message": "serving a request failed", "exception": error}
            )
        self._end_turn()

    def _end_turn(self) -> None:
        turn, self._turn = self._turn, None
        if self.lost or self._closing or turn is None:
            return
        if not turn.ended:
            self.cut(reset=False)
        elif turn.keeps and turn.complete:
            self._next()
        else:
            self._part(whole=turn.complete)

    def _next(self) -> None:
        """Go on with what the client has sent ahead."""
        limits = self._limits
        idle_s = limits.head_timeout_s if self._reader.begun else limits.client_keepalive_s
        self._deadline = self._house.loop.time() + idle_s
        self._full = False
        if self._queue:
            waiting, self._queue = self._queue, deque()
            while waiting and (self._turn is None or not self._turn.complete):
                self._take(waiting.popleft())
            self._queue = waiting
        if self._ahead and not self._queue:
            data, self._ahead = self._ahead, b""
            self._look(data)
        self._heed()

    # --- a turn's wire

    def send(self, data: bytes) -> Wait:
        if self.lost:
            raise ConnectionResetError("the client has left")
        return self.write(data)

    def want(self, *, more: bool) -> None:
        self._full = not more
        self._heed()

    def date(self) -> bytes:
        return self._house.date()

    def soon(self, call: Callable[[], None]) -> None:
        self._house.loop.call_soon(call)

    def cut(self, *, reset: bool) -> None:
        self._closing = True
        if reset:
            raw = self._transport.get_extra_info("socket")
            if raw is not None:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self.flush()
            self.abort()
            return
        self.close()  # what was written before still arrives, the final chunk never does
        self._deadline = self._house.loop.time() + self._limits.flush_s

    # --- time, and the end

    def sweep(self, now: float) -> None:
        """Give up what takes too long; called from time to time."""
        turn = self._turn
        if turn is not None and not self._closing:
            self._need_task()  # its body takes its time
            if not turn.waits:
                turn.deadline = NEVER
            elif turn.deadline == NEVER:
                turn.deadline = now + self._limits.upload_idle_s
            elif now >= turn.deadline:
                turn.fail(TimeoutError("the body stopped coming"))
            return
        if now < self._deadline:
            return
        if not self._closing and self._reader.begun:
            self._refuse(refusals.HEAD_STALLED)
        else:
            self._closing = True
            self.abort()

    def stop(self) -> None:
        """End the connection: what was written still arrives, what is served is cut."""
        self._closing = True
        if self._turn is not None:
            self.abort()
        else:
            self.close()

    def _part(self, *, whole: bool) -> None:
        """The last answer is written, to a request that was `whole` or not."""
        self._closing = True
        now = self._house.loop.time()
        self.flush()
        if not whole and self._transport.can_write_eof():
            self._transport.write_eof()
            self._deadline = now + LINGER_S
            self.read_on(True)
        else:
            self.close()
            self._deadline = now + self._limits.flush_s

    def _heed(self) -> None:
        """Read on unless something waits."""
        reads = not (self._queue or self._ahead or self._full)
        if reads is not self._reading:
            self.read_on(reads)
