"""An engine's answer on its way to a client: status, fields and body, without the parameters.

Bytes pass as they come and nothing is added; the usage of a stream that only we asked for is taken
out. JSON whose length was announced is held until it is
whole (up to `MAX_HELD`), because its length without the parameters must be announced as well.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import aiohttp
from aiohttp import HttpVersion11, web
from multidict import CIMultiDict

from sidecar.proxy import Journal
from sidecar.transfer.answers import Untouched, answer_filter

from . import headers
from .exchange import Exchange, is_stream
from .unasked import WithoutUsage

MAX_HELD = 1 << 20
"""Longest JSON answer whose length is announced anew; a longer one goes out without its length."""
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_BODILESS = {204, 304}


@dataclass(frozen=True, slots=True)
class Head:
    """Status line and fields of an engine's answer."""

    status: int
    reason: str
    raw_headers: headers.RawHeaders
    request_id: str | None = None
    """Takes the place of the engine's `x-request-id`, if that answers with one."""

    def value(self, name: str) -> str:
        wanted = name.encode()
        found = (value for key, value in self.raw_headers if key.lower() == wanted)
        return next(found, b"").decode("latin-1")


@dataclass(frozen=True, slots=True)
class Whole:
    """An answer that is here completely."""

    head: Head
    body: bytes


def head_of(answer: aiohttp.ClientResponse, request_id: str | None = None) -> Head:
    return Head(answer.status, answer.reason or "", answer.raw_headers, request_id)


class Reply(web.StreamResponse):
    """What aiohttp's server writes: the engine's status and fields, no others."""

    def __init__(self, request: web.BaseRequest, head: Head) -> None:
        kept = headers.for_client(head.raw_headers)
        if head.request_id is not None:
            kept = headers.replaced(kept, "x-request-id", head.request_id)
        fields = CIMultiDict(kept)
        super().__init__(status=head.status, reason=head.reason, headers=fields)
        self.added = {"server", "content-type"} - {name.lower() for name in fields}
        self._incoming = request

    async def begin(self) -> None:
        """Send the headers; the body's length must be known by now, if it ever is."""
        if self._incoming.version < HttpVersion11 and self.content_length is None:
            self.force_close()  # only the end of the connection ends such a body
        await self.prepare(self._incoming)


class Incoming(web.BaseRequest):
    """A request to whose answer aiohttp adds nothing but `Date`."""

    async def _prepare_hook(self, resp: web.StreamResponse) -> None:
        for name in resp.added if isinstance(resp, Reply) else ("server",):
            resp.headers.popall(name, None)


class Passage:
    """Hands one answer to one client and tells exchange and journal what passes."""

    def __init__(
        self,
        request: web.BaseRequest,
        exchange: Exchange,
        journal: Journal,
        clock: Callable[[], float],
        stripped: Callable[[], object],
    ) -> None:
        """`stripped` is called when an answer held the parameters."""
        self._request = request
        self._exchange = exchange
        self._journal = journal
        self._clock = clock
        self._stripped = stripped
        self.reply: Reply | None = None

    @property
    def begun(self) -> bool:
        """Whether the client has got a byte."""
        return self.reply is not None and self.reply.prepared

    async def run(
        self,
        head: Head,
        body: AsyncIterator[bytes],
        *,
        progress: Callable[[], None] = lambda: None,
        trusted: bool = False,
    ) -> None:
        """Pass an answer on to its end; a `trusted` caller gets the parameters, too.

        Raises LegError when the body breaks off, ConnectionError when the client has left.
        """
        kind, coding = head.value("content-type"), head.value("content-encoding")
        content = Untouched() if trusted else answer_filter(kind, coding)
        usage = WithoutUsage() if self._hides_usage(kind, coding) else Untouched()
        reply = self.reply = Reply(self._request, head)
        self._exchange.answered(head.status, kind, coding)
        held = self._held(reply, content)
        if held is None:
            await reply.begin()
        progress()
        seen = passed = 0
        async for piece in body:
            self._note(piece)
            out = content.feed(piece)
            seen, passed = seen + len(piece), passed + len(out)
            out = usage.feed(out)
            if held is not None:
                held += out
            elif out:
                await reply.write(out)
            progress()
        rest = content.finish()
        passed += len(rest)
        rest = usage.feed(rest) + usage.finish()
        if passed < seen:
            self._stripped()
        if held is not None:
            reply.content_length = len(held) + len(rest)
            await reply.begin()
            await reply.write(bytes(held))
        if rest:
            await reply.write(rest)
        await reply.write_eof()
        self._exchange.completed()

    def _hides_usage(self, kind: str, coding: str) -> bool:
        readable = coding.strip().lower() in {"", "identity"}
        return self._exchange.hides_usage and readable and is_stream(kind)

    def _held(self, reply: Reply, content: object) -> bytearray | None:
        """Where the body is kept until its length is known; None when it passes at once."""
        length = reply.content_length
        bodiless = self._request.method == "HEAD" or reply.status in _BODILESS
        if isinstance(content, Untouched) or bodiless or length is None:
            return None
        if length <= MAX_HELD:
            return bytearray()
        reply.content_length = None
        return None

    def _note(self, piece: bytes) -> None:
        exchange = self._exchange
        ttft_s = exchange.piece(piece, self._clock())
        if ttft_s is not None and exchange.decision_id and exchange.status < 400:
            self._journal.first_token(exchange.decision_id, ttft_s)


async def once(body: bytes) -> AsyncIterator[bytes]:
    """A body that is here already."""
    yield body


def cut(request: web.BaseRequest, flush_s: float) -> None:
    """End the client's connection so that it notices: unfinished framing, or a reset."""
    transport = request.transport
    if transport is None:
        return
    if request.version < HttpVersion11:
        raw = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        transport.abort()
        return
    transport.close()  # what was written before still arrives, the final chunk never does
    asyncio.get_running_loop().call_later(flush_s, transport.abort)
