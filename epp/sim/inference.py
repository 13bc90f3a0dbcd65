"""Completion and chat routes of a simulated engine: faults first, then the engine, then the answer.

A client that leaves cancels its handler, which aborts its sequences.
"""

import asyncio
import itertools
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import NoReturn

from aiohttp import web

from epp.sim.answers import Answer, answer_to
from epp.sim.api import ApiError, Ask
from epp.sim.driver import Driver, Feed
from epp.sim.faults import FaultBox, Faults
from epp.sim.settings import EngineSettings
from epp.sim.submission import Submission
from epp.sim.traffic import CutError

Parse = Callable[[bytes, EngineSettings], Ask]
EVENT_STREAM = "text/event-stream; charset=utf-8"


class Inference:
    """Answers inference requests from one driver."""

    def __init__(
        self,
        settings: EngineSettings,
        driver: Driver,
        faults: FaultBox,
        *,
        wall_ns: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._driver = driver
        self._faults = faults
        self._wall_ns = wall_ns
        self._numbers = itertools.count(1)

    def handler(self, parse: Parse) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """The handler of one route."""

        async def handle(request: web.Request) -> web.StreamResponse:
            faults = self._faults.active
            body = await request.read()
            if faults.latency_s:
                await asyncio.sleep(faults.latency_s)
            status = self._faults.status()
            if status is not None:
                raise ApiError(status, "InternalServerError", "The engine was told to fail.")
            if faults.hang:
                await asyncio.Event().wait()
            if faults.reset_after_chunks == 0:
                _cut(request)
            answer, feed = self._submit(parse(body, self._settings))
            try:
                if answer.ask.stream:
                    return await _stream(request, answer, feed, faults)
                return await _whole(request, answer, feed, faults)
            finally:
                self._driver.leave(feed)

        return handle

    def _submit(self, ask: Ask) -> tuple[Answer, Feed]:
        name = f"{next(self._numbers):08x}"
        created = self._wall_ns() // 1_000_000_000
        answer = answer_to(ask, name, created)
        submissions = [
            Submission(
                id=f"{name}-{choice.index}",
                prompt=choice.prompt,
                max_tokens=ask.limits[choice.index // ask.choices],
                ends_by_itself=ask.ends_by_itself,
                variant=choice.index % ask.choices,
                namespace=ask.namespace,
            )
            for choice in answer.choices
        ]
        return answer, self._driver.submit(submissions)


async def _whole(request: web.Request, answer: Answer, feed: Feed, faults: Faults) -> web.Response:
    while not answer.ended:
        if await _next_token(answer, feed) is None:
            _cut(request)
    body = answer.whole()
    if faults.reset_after_chunks is not None:
        await _send_half(request, body)
        _cut(request)
    return web.Response(body=body, content_type="application/json")


async def _send_half(request: web.Request, body: bytes) -> None:
    response = web.StreamResponse(
        headers={"Content-Type": "application/json", "Content-Length": str(len(body))}
    )
    await response.prepare(request)
    await response.write(body[: len(body) // 2])


async def _stream(
    request: web.Request, answer: Answer, feed: Feed, faults: Faults
) -> web.StreamResponse:
    # Headers go out before the first token, as vLLM sends them: they are no sign of a prefill.
    response = web.StreamResponse(headers={"Content-Type": EVENT_STREAM})
    await response.prepare(request)
    sent = 0
    while not answer.ended:
        index = await _next_token(answer, feed)
        if index is None:
            _cut(request)
        choice = answer.choices[index]
        opening = answer.opening(choice) if len(choice.tokens) == 1 else b""
        for event in filter(None, (opening, answer.piece(choice))):
            if sent == faults.hang_after_chunks:
                await asyncio.Event().wait()
            if sent == faults.reset_after_chunks:
                _cut(request)
            await response.write(event)
            sent += 1
    await response.write(answer.closing())
    await response.write_eof()
    return response


async def _next_token(answer: Answer, feed: Feed) -> int | None:
    """Take one token into the answer; returns its choice, None when the engine died."""
    output = await feed.next()
    if output is None:
        return None
    index = feed.sequences[output.id]
    choice = answer.choices[index]
    choice.tokens.append(output.token)
    choice.cached_tokens = output.cached_tokens
    if output.finish is not None:
        choice.finish_reason = output.finish.ending.value
    return index


def _cut(request: web.Request) -> NoReturn:
    """End the connection so that the peer sees a reset (RST), not an end."""
    transport = request.transport
    if transport is not None:
        connection = transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
    raise CutError("the engine cut this connection")
