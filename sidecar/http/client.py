"""What the exchange needs of a connection to a client and of one to an engine.

Two shells offer it: `sidecar.relay` on raw protocols, and `sidecar.reference` on aiohttp.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol
from urllib.parse import urlsplit

from sidecar.transfer.targets import Target

from . import headers
from .headers import Fields, RawHeaders
from .incoming import Incoming
from .shapes import AnswerShape
from .upload import Content, Upload

Wait = Awaitable[None] | None
"""None when the writer may go on at once, else what it has to wait for."""
Take = Callable[[bytes], Wait]
TakeChunk = Callable[[bytes, int], Wait | Literal[False]]
"""Takes one whole chunk as it came, with so many bytes of content; False when it does not."""


@dataclass(slots=True)
class Head:
    """Status line and fields of an engine's answer. Never changed once it is made."""

    status: int
    reason: str
    given: RawHeaders = ()
    """The fields, where there is no shape."""
    request_id: str | None = None
    """Takes the place of the engine's `x-request-id`, if that answers with one."""
    shape: AnswerShape | None = None
    """Of the names of `fields`, from a reader that has looked it up."""
    worth: Sequence[bytes] = ()
    """The values of `fields`, beside a shape."""

    @property
    def fields(self) -> RawHeaders:
        """Names and values as they were sent, in order. Made anew each time."""
        if self.shape is None:
            return self.given
        return list(zip(self.shape.names, self.worth, strict=True))

    @property
    def content(self) -> headers.Content:
        """What it says of the body."""
        shape = self.shape
        return headers.content_of(self.given) if shape is None else shape.content(self.worth)

    def value(self, name: str) -> str:
        """The first value of a field, or an empty text."""
        wanted = name.encode()
        found = (value for key, value in self.fields if key.lower() == wanted)
        return next(found, b"").decode("latin-1")

    def under(self, request_id: str | None) -> "Head":
        """The same, under the client's own id."""
        return replace(self, request_id=request_id)


@dataclass(frozen=True, slots=True)
class Whole:
    """An answer that is here completely."""

    head: Head
    body: bytes


@dataclass(slots=True)
class Call:
    """A request as the engine gets it. Never changed once it is made."""

    method: str
    target: str
    """Path and query as they were on the wire; begins with `/`."""
    fields: Fields
    """Empty where `lines` has them."""
    upload: Upload | Content | None
    lines: bytes | None = None
    """The fields as they are written, `Host` among them, where they are at hand."""


class Client(Protocol):
    """One request of a client, and the way to answer it.

    Whoever serves it is cancelled when the client leaves. Writing raises ConnectionError once the
    connection is gone.
    """

    @property
    def incoming(self) -> Incoming: ...

    @property
    def begun(self) -> bool:
        """Whether the client has got a byte of an answer."""

    def proceed(self) -> Wait:
        """Say `100 Continue`."""

    async def readany(self) -> bytes:
        """The next bytes of the body, empty at its end.

        Raises TimeoutError when none came for `upload_idle_s`, OSError when it is broken.
        """

    def begin(
        self, status: int, reason: str, fields: Fields, length: int | None, *, follows: bool = False
    ) -> Wait:
        """Send the head of an answer. `length` is of the body, None when it is not known yet.

        `follows`: bytes of the body, or its end, are written at once.
        """

    def write(self, data: bytes) -> Wait:
        """The next bytes of the answer's body."""

    def relay(self, data: bytes) -> Wait | Literal[False]:
        """The same for one whole chunk as an engine wrote it. False where the answer is framed
        otherwise, or its head was not sent yet: nothing is written then."""

    def end(self) -> Wait:
        """The answer is complete."""

    def own(self, status: int, body: bytes, *, close: bool = False) -> None:
        """A whole answer of our own, in JSON; with `close` the last one of this connection."""

    def cut(self) -> None:
        """End the connection so that the client notices: unfinished framing, or a reset."""


class NearClient(Client, Protocol):
    """One who can be given bytes as they go over the wire."""

    def answer(self, status: int, reason: str, lines: bytes, body: bytes, *, dated: bool) -> Wait:
        """A whole answer with a body. `lines`: its fields without the length, each with its line's
        end; `dated`: a date is among them."""


class Answer(Protocol):
    """An engine's answer whose head is here. Whoever got it closes it."""

    @property
    def head(self) -> Head: ...

    async def next(self) -> bytes:
        """The next bytes of the body, empty at its end. Raises LegError when it breaks off."""

    async def pump(self, take: Take, chunk: TakeChunk) -> None:
        """Give the rest of the body to `take` as it comes, no faster than `take` allows.

        A whole chunk may be given to `chunk` instead, if that takes it.

        Raises LegError when it breaks off, and whatever `take` raises.
        """

    def close(self) -> None:
        """Done with it. The connection is kept if all of it was read."""


class Listener(Protocol):
    """Whom an engine's connection tells what comes. Calls return at once and never fail."""

    def begin(self, head: Head) -> None: ...

    def piece(self, data: bytes) -> None: ...

    def chunk(self, data: bytes, size: int) -> bool:
        """One whole chunk came, with `size` bytes of content: whether it is taken as it is.
        Otherwise its content comes as a `piece`."""

    def whole(self, head: Head, body: bytes) -> None:
        """`begin`, `piece` and `end` at once."""

    def end(self) -> None:
        """The answer is complete, and the connection no longer its listener's."""

    def fail(self, error: Exception) -> None:
        """The answer will not be complete. Called once, and nothing after it."""


class Line(Protocol):
    """A connection to an engine on which nobody has asked for anything yet."""

    @property
    def silent(self) -> bool:
        """Whether not a byte of an answer came."""

    def ask_for(self, listener: Listener, call: Call) -> None:
        """Send a request whose body, if it has one, is here."""

    def read_on(self, reads: bool, /) -> None: ...

    def drop(self) -> None:
        """End the connection at once."""


class Asked(Protocol):
    """A request under way whose answer a `Listener` is told. Nobody's once the answer has ended."""

    def read_on(self, reads: bool, /) -> None:
        """Whether more of the answer is wanted at present."""

    def drop(self) -> None:
        """End it at once. Its listener is told nothing more."""


class Lines(Protocol):
    """Connections to the engine."""

    def spare(self) -> Line | None:
        """One that was used before and is nobody's."""

    async def fresh(self) -> Line:
        """A new one. Raises LegError."""


class Upstream(Protocol):
    """Client of one engine and of other sidecars. Use as an async context manager."""

    @property
    def repeats(self) -> int:
        """Requests that were sent a second time."""

    async def __aenter__(self) -> "Upstream": ...

    async def __aexit__(self, *_: object) -> None: ...

    async def send(self, call: Call) -> Answer:
        """Send a request to the engine and wait for the head of its answer.

        When a reused connection turns out dead before any byte of the answer, the request is sent
        once more on a fresh one (fault D15), unless its body is no longer here. Raises LegError:
        the engine's fault, or the upload's `cause` when it was the client's.
        """

    async def send_once(self, call: Call) -> Answer:
        """Like `send` and never repeated, for what must not be twice: over a connection that is new
        or was in use a moment ago, which no engine closes for being idle."""

    async def send_again(self, call: Call) -> Answer:
        """Like `send_once`, over a new one, after a reused one turned out dead (fault D15)."""

    async def send_to(self, target: Target, call: Call, *, plain: bool = False) -> Answer:
        """Like `send`, to another sidecar and never repeated.

        `plain`: to a port of an engine that speaks no TLS, whatever sidecars do.
        """

    def ask(self, listener: Listener, call: Call, *, once: bool) -> Asked:
        """Send a request whose body is here to the engine, and tell `listener` what comes.

        It returns at once and tells nothing yet. With `once` the request is never repeated: it
        goes over a connection that is new or was in use a moment ago. Otherwise as `send` does.
        """

    def ask_at(self, target: Target, listener: Listener, call: Call) -> Asked:
        """The same to another sidecar, as `send_to` does."""


def engine_at(url: str) -> Target:
    """Where an engine listens whose base URL this is."""
    parts = urlsplit(url)
    return Target(parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))


async def whole(answer: Answer, most: int, too_much: Exception, begun: bytes = b"") -> bytes:
    """The body to its end, after what was `begun`. Raises `too_much` beyond `most` bytes."""
    body = bytearray(begun)
    while piece := await answer.next():
        body += piece
        if len(body) > most:
            raise too_much
    return bytes(body)
