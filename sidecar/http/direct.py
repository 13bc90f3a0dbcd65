"""The plain way without a task: a request whose body is here, to the engine and back.

The engine's connection tells a `Direct` what comes, one call for each piece, and the client's
connection when the client leaves. Whatever is not plain is served by a task (`Service.serve`), and
so is a request that must be sent a second time.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Protocol

import structlog

from sidecar.proxy import Outcome

from . import headers
from .client import Call, Head, Line, Lines, NearClient, Wait
from .exchange import Exchange
from .incoming import Incoming
from .passage import Passage
from .refusals import ENGINE_LOST, ENGINE_SILENT, TOO_LONG, LegError, Refused

_CONNECTION = b"connection"
_MULTIPART = b"multipart"

Over = Callable[[Coroutine[None, None, None] | None], None]
"""Called once, when an exchange is over, or with what a task has to do to end it."""

log = structlog.get_logger(__name__)


class Served(Protocol):
    """An exchange that is served without a task."""

    def cancel(self) -> None:
        """The client has left."""


def may_go_directly(incoming: Incoming) -> bool:
    """Whether a head asks for nothing but to be passed on, or split."""
    shape, target = incoming.shape, incoming.target
    if shape is None or not (shape.is_plain or shape.splits) or incoming.on_leg_port:
        return False
    if not target.startswith("/") or target.startswith("/health") or incoming.method == "CONNECT":
        return False
    if _CONNECTION in shape.at and any(
        headers.names_options(incoming.worth[number]) for number in shape.at[_CONNECTION]
    ):
        return False
    kind = incoming.first(b"content-type")
    return kind is None or _MULTIPART not in kind.lower()


class Desk(Protocol):
    """What a `Direct` needs of the service."""

    def failed(self, passage: Passage, refused: Refused) -> None: ...

    def left(self, direct: "Direct") -> None:
        """It is over."""

    def again(self, direct: "Direct") -> Coroutine[None, None, None]:
        """It is a task's from here on, which sends the request once more."""


class Direct:
    """One exchange. A `client.Listener`."""

    __slots__ = (
        "_connecting",
        "_desk",
        "_fresh",
        "_line",
        "_over",
        "began",
        "call",
        "client",
        "exchange",
        "passage",
        "size",
    )

    def __init__(
        self,
        desk: Desk,
        client: NearClient,
        exchange: Exchange,
        passage: Passage,
        call: Call,
        *,
        size: int,
        began: float,
        over: Over,
    ) -> None:
        """`size` is of the client's body, `began` when it was sent."""
        self.client = client
        self.exchange = exchange
        self.passage = passage
        self.call = call
        self.size = size
        self.began = began
        self._desk = desk
        self._over: Over | None = over
        self._line: Line | None = None
        self._fresh = False  # the line is
        self._connecting: asyncio.Task[Line] | None = None

    def ask_on(self, lines: Lines) -> None:
        """Send the request on a spare connection, or on a new one as soon as it is there."""
        line = lines.spare()
        if line is not None:
            self._ask(line)
            return
        self._fresh = True
        self._connecting = asyncio.get_running_loop().create_task(lines.fresh())
        self._connecting.add_done_callback(self._connected)

    def _connected(self, task: "asyncio.Task[Line]") -> None:
        self._connecting = None
        if task.cancelled():
            return  # the exchange is over
        error = task.exception()
        if error is None and self._over is None:
            task.result().drop()
        elif error is None:
            self._ask(task.result())
        elif isinstance(error, LegError):
            self._refuse(error.refused)
        else:
            assert isinstance(error, Exception)
            self._broken(error)

    def _ask(self, line: Line) -> None:
        """Send it on this connection, which is nobody else's."""
        self._line = line
        line.ask_for(self, self.call)

    # --- what the engine's connection tells

    def begin(self, head: Head) -> None:
        self._step(lambda: self.passage.open(head))

    def piece(self, data: bytes) -> None:
        try:
            wait = self.passage.take(data)
        except Exception as error:  # noqa: BLE001 - edge of a callback
            self._broken(error)
            return
        if wait is not None:
            self._read_after(wait)

    def chunk(self, data: bytes, size: int) -> bool:
        try:
            wait = self.passage.chunk(data, size)
        except Exception as error:  # noqa: BLE001 - edge of a callback
            self._broken(error)
            return True
        if wait is False:
            return False
        if wait is not None:
            self._read_after(wait)
        return True

    def whole(self, head: Head, body: bytes) -> None:
        self._line = None
        try:
            wait = self.passage.at_once(head, body, self.client)
        except Exception as error:  # noqa: BLE001 - edge of a callback
            self._broken(error)
            return
        self._finish_after(wait)

    def end(self) -> None:
        """The answer is complete; the connection is no longer its own."""
        self._line = None
        wait: Wait = None
        try:
            for step in self.passage.closing():
                wait = step
        except Exception as error:  # noqa: BLE001 - edge of a callback
            self._broken(error)
            return
        self._finish_after(wait)

    def _finish_after(self, wait: Wait) -> None:
        if wait is None:
            self._finish()
        else:  # the client is slow: its next request waits until it has read
            assert isinstance(wait, asyncio.Future)
            wait.add_done_callback(lambda _: self._finish())

    def fail(self, error: Exception) -> None:
        """The answer will not be complete."""
        line, self._line = self._line, None
        assert isinstance(error, LegError)
        dead = error.refused is ENGINE_LOST and line is not None and line.silent
        if dead and not self._fresh:
            over, self._over = self._over, None
            if over is not None:
                over(self._desk.again(self))
            return
        self._refuse(error.refused)

    # --- the end

    def cancel(self) -> None:
        self._drop()
        self._finish()

    def cut(self) -> None:
        """The sidecar ends."""
        self.cancel()

    def sweep(self, now: float, idle_s: float, total_s: float) -> None:
        """Give up what takes too long; called from time to time."""
        if now - self.began >= total_s:
            self._late(TOO_LONG)
        elif now - max(self.began, self.passage.moved) >= idle_s:
            self._late(ENGINE_SILENT)

    def _late(self, refused: Refused) -> None:
        self._drop()
        self._refuse(refused)

    def _refuse(self, refused: Refused) -> None:
        self._step(lambda: self._desk.failed(self.passage, refused))
        self._finish()

    def _step(self, step: Callable[[], object]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - edge of a callback
            self._broken(error)

    def _broken(self, error: Exception) -> None:
        """Writing to the client failed, or we did: one request fails, the sidecar goes on."""
        self._drop()
        if isinstance(error, ConnectionError):
            self.exchange.outcome = Outcome.CLIENT_GONE
        else:
            log.error("a request failed inside the sidecar", exc_info=error)
            self.exchange.outcome = Outcome.ENGINE_ERROR
            self.client.cut()
        self._finish()

    def _drop(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.drop()
        if self._connecting is not None:
            self._connecting.cancel()

    def _read_after(self, wait: Wait) -> None:
        """Read on when the client's connection has room again."""
        line = self._line
        if line is not None:
            assert isinstance(wait, asyncio.Future)
            line.read_on(False)
            wait.add_done_callback(lambda _: self._read_on(line))

    def _read_on(self, line: Line) -> None:
        if self._line is line:
            line.read_on(True)

    def _finish(self) -> None:
        over, self._over = self._over, None
        if over is not None:
            self._desk.left(self)
            over(None)
