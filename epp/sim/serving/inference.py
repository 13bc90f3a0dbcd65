"""Generative routes of a simulated engine: faults first, then the engine, then the answer.

A client that leaves cancels its handler, which aborts its sequences. A request that is refused and
would have pulled KV hands it back, so that it is not kept for nobody.
"""

import asyncio
import itertools
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import NoReturn

from aiohttp import web
from xxhash import xxh3_64_hexdigest

from epp.bodies.sharing import Api
from epp.errors import EppError
from epp.sim.answers import Answer, Choice
from epp.sim.api import ApiError, Ask, offered_to
from epp.sim.catalog import Parse, answer_to
from epp.sim.serving.driver import Driver, Feed, Lost
from epp.sim.serving.embeddings import Embeddings
from epp.sim.serving.faults import FaultBox, Faults
from epp.sim.serving.handover import Handover
from epp.sim.serving.recorder import Recorder
from epp.sim.serving.side_channel import PullError
from epp.sim.serving.traffic import CutError
from epp.sim.settings import EngineSettings
from epp.sim.submission import EngineDeadError, Output, Submission
from epp.sim.transfer import Offer

INTERNAL = "InternalServerError"
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
        recorder: Recorder,
        handover: Handover | None,
        embeddings: Embeddings,
    ) -> None:
        self._settings = settings
        self._driver = driver
        self._faults = faults
        self._wall_ns = wall_ns
        self._recorder = recorder
        self._handover = handover
        self._embeddings = embeddings
        self._numbers = itertools.count(1)

    def handler(self, parse: Parse) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """The handler of one route."""

        async def handle(request: web.Request) -> web.StreamResponse:
            faults = self._faults.active
            body = await request.read()
            self._recorder.note(request.method, request.raw_path, request.raw_headers, body)
            if faults.latency_s:
                await asyncio.sleep(faults.latency_s)
            status = self._faults.status()
            if status is not None:
                raise ApiError(status, "InternalServerError", "The engine was told to fail.")
            if faults.hang:
                await asyncio.Event().wait()
            if faults.reset_after_chunks == 0:
                _cut(request)
            name = request.headers.get("X-Request-Id")
            try:
                ask = await self._met(parse(body, self._settings))
                if self._is_cold(ask):
                    return self._refuse(ask, name)
                if ask.transfer.pull is None:  # nothing of a prompt that was computed elsewhere
                    await self._embeddings.take(ask.media, ask.embeddings)
                answer, feed = self._submit(ask, name, faults)
            except EppError:
                self._hand_back(body)
                raise
            try:
                if answer.ask.stream:
                    return await self._stream(request, answer, feed, faults)
                return await self._whole(request, answer, feed, faults)
            finally:
                self._driver.leave(feed)

        return handle

    async def _met(self, ask: Ask) -> Ask:
        """The request with the pull that it asks for by a name, or finds in a storage."""
        if self._handover is None:
            return ask
        transfer = ask.transfer
        if self._settings.kv_storage is not None:
            one = len(ask.prompts) * ask.choices == 1
            pull = self._handover.stored(ask.prompts[0], ask.namespace) if one else None
            return replace(ask, transfer=replace(transfer, pull=pull))
        if transfer.source is not None:
            await self._handover.fetch(transfer.source, ask.prompts[0], ask.namespace)
        if transfer.meet is None:
            return ask
        try:
            pull = await self._handover.met(transfer.meet)
        except PullError as error:
            self._driver.engine.counters.failed_pulls += 1
            if self._settings.kv_load_failure_policy == "fail":
                raise ApiError(500, INTERNAL, "Internal server error") from error
            pull = None
        return replace(ask, transfer=replace(transfer, meet=None, pull=pull))

    def _is_cold(self, ask: Ask) -> bool:
        """Whether less of the prompt is at hand than the request asks for."""
        if ask.transfer.pull is not None:
            return False
        prompt = ask.prompts[0]
        return self._driver.engine.cached_prefix(prompt, ask.namespace) < (
            ask.least_cached * len(prompt)
        )

    def _refuse(self, ask: Ask, name: str | None) -> web.Response:
        answer = self._answer_to(ask, name, next(self._numbers))
        kind = EVENT_STREAM if ask.stream else "application/json"
        return web.Response(body=answer.refusing(), headers={"Content-Type": kind})

    def _answer_to(self, ask: Ask, name: str | None, number: int) -> Answer:
        return answer_to(ask, name or f"{number:016x}", self._wall_ns() // 1_000_000_000)

    def _submit(self, ask: Ask, name: str | None, faults: Faults) -> tuple[Answer, Feed]:
        number = next(self._numbers)
        answer = self._answer_to(ask, name, number)
        unique = xxh3_64_hexdigest(f"{self._driver.engine_id} {number}".encode())[:8]
        # A client's id may come twice at once, so the engine makes its own of it.
        ids = [
            f"{answer.id}{f'-{index}' if ask.api is Api.COMPLETIONS else ''}-{unique}"
            for index in range(len(answer.choices))
        ]
        if ask.api is not Api.COMPLETIONS and len(ids) > 1:
            ids = [f"{index}_{one}" for index, one in enumerate(ids)]
        transfer, ends_by_itself = ask.transfer, ask.ends_by_itself
        if transfer.offer and faults.prefill_offers_nothing:
            transfer, ends_by_itself = replace(transfer, offer=False), True
        submissions = [
            Submission(
                id=one,
                prompt=choice.prompt,
                max_tokens=ask.limits[choice.index // ask.choices],
                ends_by_itself=ends_by_itself,
                variant=choice.index % ask.choices,
                namespace=ask.namespace,
                transfer=transfer,
            )
            for one, choice in zip(ids, answer.choices, strict=True)
        ]
        if ask.media:
            answer.choices[0].embeddings = self._embeddings.params(ask.media)
        return answer, self._driver.submit(submissions)

    def _hand_back(self, body: bytes) -> None:
        if self._handover is not None and self._driver.engine.dead is None:
            ask = offered_to(body)
            if ask is not None:
                self._handover.puller.hand_back(ask)

    async def _whole(
        self, request: web.Request, answer: Answer, feed: Feed, faults: Faults
    ) -> web.Response:
        while not answer.ended:
            self._take(answer, feed, await _next_output(request, feed))
        body = answer.whole()
        if faults.reset_after_chunks is not None:
            await _send_half(request, body)
            _cut(request)
        return web.Response(body=body, content_type="application/json")

    async def _stream(
        self, request: web.Request, answer: Answer, feed: Feed, faults: Faults
    ) -> web.StreamResponse:
        # Headers go out before the first token, as vLLM sends them: they are no sign of a prefill.
        response = web.StreamResponse(headers={"Content-Type": EVENT_STREAM})
        await response.prepare(request)
        try:
            await self._send_tokens(request, response, answer, feed, faults)
            await response.write(answer.closing())
        except ApiError as error:
            await response.write(answer.failing(error.body()))
        await response.write_eof()
        return response

    async def _send_tokens(
        self,
        request: web.Request,
        response: web.StreamResponse,
        answer: Answer,
        feed: Feed,
        faults: Faults,
    ) -> None:
        sent = 0
        while not answer.ended:
            index = self._take(answer, feed, await _next_output(request, feed))
            choice = answer.choices[index]
            opening = answer.opening(choice) if len(choice.tokens) == 1 else b""
            for event in filter(None, (opening, answer.piece(choice))):
                if sent == faults.hang_after_chunks:
                    await asyncio.Event().wait()
                if sent == faults.reset_after_chunks:
                    _cut(request)
                await response.write(event)
                sent += 1

    def _take(self, answer: Answer, feed: Feed, output: Output) -> int:
        """Take one token into the answer; returns its choice."""
        index = feed.sequences[output.id]
        choice = answer.choices[index]
        choice.tokens.append(output.token)
        choice.cached_tokens = output.cached_tokens
        pull = answer.ask.transfer.pull
        if self._settings.usage_counts_remote_cache and pull and pull.cached_tokens is not None:
            choice.cached_tokens = pull.cached_tokens
        if output.finish is not None:
            choice.finish_reason = output.finish.ending.value
            if output.finish.offer is not None and self._handover is not None:
                self._offer(self._handover, answer.ask, choice, output.finish.offer)
        return index

    def _offer(self, handover: Handover, ask: Ask, choice: Choice, offer: Offer) -> None:
        """Let another engine know of the blocks, in the way of this engine's connector."""
        if self._settings.kv_storage is not None:
            handover.store(choice.prompt, ask.namespace, offer)
        elif ask.transfer.name:
            handover.offered(ask.transfer.name, offer)
        else:
            choice.transfer = handover.params(offer)


async def _send_half(request: web.Request, body: bytes) -> None:
    response = web.StreamResponse(
        headers={"Content-Type": "application/json", "Content-Length": str(len(body))}
    )
    await response.prepare(request)
    await response.write(body[: len(body) // 2])


async def _next_output(request: web.Request, feed: Feed) -> Output:
    """Wait for a token. Raises ApiError when the engine cannot go on with the request."""
    output = await feed.next()
    if isinstance(output, Output):
        return output
    if output is Lost.RESTARTED:
        _cut(request)
    # Nothing tells a client that the KV was the reason.
    dead = output is Lost.DEAD
    raise ApiError(500, INTERNAL, str(EngineDeadError()) if dead else "Internal server error")


def _cut(request: web.Request) -> NoReturn:
    """End the connection so that the peer sees a reset (RST), not an end."""
    transport = request.transport
    if transport is not None:
        connection = transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
    raise CutError("the engine cut this connection")
