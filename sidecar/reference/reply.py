"""One request of a client on aiohttp's server, and its answer: status and fields, no others."""

import asyncio
import socket
import struct
from typing import Literal

from aiohttp import HttpVersion11, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web import RequestPayloadError
from multidict import CIMultiDict

from sidecar.guard import address
from sidecar.http.client import Wait
from sidecar.http.headers import CONTENT_LENGTH, Fields, without
from sidecar.http.incoming import Incoming
from sidecar.proxy import Limits
from sidecar.transfer.targets import Target

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Reply(web.StreamResponse):
    """What aiohttp's server writes: the status and fields it is given, no others."""

    def __init__(self, status: int, reason: str, fields: Fields) -> None:
        decoded = CIMultiDict((_text(name), _text(value)) for name, value in fields)
        super().__init__(status=status, reason=reason, headers=decoded)
        self.added = {"server", "content-type"} - {name.lower() for name in decoded}


class Request(web.BaseRequest):
    """A request to whose answer aiohttp adds nothing but `Date`."""

    async def _prepare_hook(self, resp: web.StreamResponse) -> None:
        for name in resp.added if isinstance(resp, Reply) else ("server",):
            resp.headers.popall(name, None)


class AiohttpClient:
    """A `http.client.Client`."""

    def __init__(self, request: web.BaseRequest, limits: Limits, *, on_leg_port: bool) -> None:
        self._request = request
        self._limits = limits
        self._answer: web.StreamResponse | None = None
        self.incoming = Incoming(
            method=request.method,
            target=request.raw_path,
            fields=request.raw_headers,
            http11=request.version >= HttpVersion11,
            has_body=request.body_exists,
            length=request.content_length,
            at=_own(request),
            peer=request.remote or "",
            on_leg_port=on_leg_port,
        )

    @property
    def begun(self) -> bool:
        return isinstance(self._answer, Reply) and self._answer.prepared

    @property
    def response(self) -> web.StreamResponse:
        """What aiohttp's handler returns. Raises ConnectionError when there is no answer."""
        if self._answer is None:
            raise ConnectionError("the client has left")
        return self._answer

    async def proceed(self) -> None:
        writer = self._request.writer
        await writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        writer.output_size = 0

    async def readany(self) -> bytes:
        # aiohttp's server does not tell the body's reader when its framing breaks: such a body
        # just stops.
        try:
            async with asyncio.timeout(self._limits.upload_idle_s):
                return await self._request.content.readany()
        except (RequestPayloadError, HttpProcessingError) as error:
            raise ConnectionError(str(error)) from error

    async def begin(
        self, status: int, reason: str, fields: Fields, length: int | None, *, follows: bool = False
    ) -> None:
        reply = self._answer = Reply(status, reason, without(fields, CONTENT_LENGTH))
        reply.content_length = length
        if length is None and not self.incoming.http11:
            reply.force_close()  # only the end of the connection ends such a body
        await reply.prepare(self._request)

    def write(self, data: bytes) -> Wait:
        return self._begun_reply().write(data)

    def relay(self, data: bytes) -> Literal[False]:
        return False  # aiohttp frames what it writes

    def end(self) -> Wait:
        return self._begun_reply().write_eof()

    def own(self, status: int, body: bytes, *, close: bool = False) -> None:
        self._answer = web.Response(
            status=status, body=body, headers={"content-type": "application/json"}
        )
        if close:
            self._answer.force_close()

    def cut(self) -> None:
        if self._answer is None:
            self._answer = web.Response(status=500)
        transport = self._request.transport
        if transport is None:
            return
        if not self.incoming.http11:
            raw = transport.get_extra_info("socket")
            if raw is not None:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            transport.abort()
            return
        transport.close()  # what was written before still arrives, the final chunk never does
        asyncio.get_running_loop().call_later(self._limits.flush_s, transport.abort)

    def _begun_reply(self) -> web.StreamResponse:
        assert self._answer is not None
        return self._answer


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def _own(request: web.BaseRequest) -> Target | None:
    transport = request.transport
    name = None if transport is None else transport.get_extra_info("sockname")
    return Target(address(name[0]), name[1]) if isinstance(name, tuple) else None
