"""The HTTP server towards clients: strict in what it reads, and it never quotes what it refused."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

from sidecar.http import refusals
from sidecar.proxy import Limits

from .reply import Request

_QUIET = logging.getLogger("sidecar.reference.serving.http")
_QUIET.setLevel(logging.CRITICAL)  # a client's bad request gets an answer, not a stack trace

LINGER_S = 2.0
"""How long to read on from a client that was answered before its body had ended."""


class _Connection(web.RequestHandler):
    """aiohttp's, but for its own answers to requests that it cannot read: those quote them."""

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to what is no HTTP. The connection ends: who knows where a next one begins."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun, so that no other one can be given")
        refused = refusals.UNREADABLE if status < 500 else refusals.BROKEN
        response = web.Response(
            status=refused.status,
            body=refusals.body_of(refused),
            headers={"content-type": "application/json"},
        )
        response.force_close()
        return response


class Server(web.Server):
    """Makes one `_Connection` for each that is accepted."""

    def __init__(
        self,
        handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        limits: Limits,
    ) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(
            handle,
            request_factory=lambda message, payload, protocol, writer, task: Request(
                message, payload, protocol, writer, task, loop
            ),
            handler_cancellation=True,
            access_log=None,
            auto_decompress=False,
            lingering_time=LINGER_S,
            logger=_QUIET,
            max_field_size=limits.max_header_bytes,
            max_headers=limits.max_headers,
            max_line_size=limits.max_header_bytes,
        )

    def __call__(self) -> web.RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)
