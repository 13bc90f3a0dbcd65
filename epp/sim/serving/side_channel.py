"""The side channel between simulated engines: a small HTTP port of its own, one message a request.

| message | does |
|---|---|
| `shake` | is this life of the engine still there? |
| `read` | what is in these blocks; ends their pin |
| `return` | the blocks will not be read; ends their pin |
| `beat` | somebody still waits for these requests |
| `meet` | what is offered under this name, once it is there |

Every message names the life of the engine that it is for; another life answers 404. Reading asks
for no permission, as in the hardware (see `pins`). `GET /query` tells the life, as bootstrap
servers do.
"""

from collections.abc import Awaitable, Callable, Sequence

import aiohttp
import msgspec
from aiohttp import web

from epp.errors import EppError
from epp.sim.hashing import Content
from epp.sim.serving.driver import Driver
from epp.sim.serving.rooms import Rooms
from epp.sim.transfer import MeetAsk, PullAsk, read_params

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
MESSAGE_TIMEOUT_S = 5.0

_encode = msgspec.json.encode


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message; which fields count depends on its route."""

    engine_id: str
    request_ids: list[str] = []
    blocks: list[int] = []


class Meet(msgspec.Struct, frozen=True, kw_only=True):
    """A wish for an offer, from whatever life of the engine when it names none."""

    name: str
    within_s: float
    engine_id: str | None = None


class Chain(msgspec.Struct, frozen=True, kw_only=True):
    """A question for what is cached of a prompt."""

    hashes: list[int]


class PullError(EppError):
    """Another engine refused, or did not answer."""

    reason = "pull"


class SideChannel:
    """What the routes of the side channel do with one engine."""

    def __init__(self, driver: Driver, rooms: Rooms) -> None:
        self._driver = driver
        self._rooms = rooms

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_MESSAGE_BYTES)
        app.add_routes(
            [
                web.post("/shake", self._route(lambda message: [])),
                web.post("/read", self._route(self._read)),
                web.post("/return", self._route(self._return)),
                web.post("/beat", self._route(self._beat)),
                web.post("/meet", self._meet),
                web.post("/prefix", self._prefix),
                web.get("/query", self._query),
            ]
        )
        return app

    async def _query(self, _: web.Request) -> web.Response:
        return web.json_response({"0": {"engine_id": self._driver.engine_id, "worker_addr": {}}})

    async def _prefix(self, request: web.Request) -> web.Response:
        try:
            chain = msgspec.json.decode(await request.read(), type=Chain)
        except msgspec.DecodeError as error:
            return web.Response(status=400, text=str(error))
        contents = self._driver.engine.prefix_contents(chain.hashes)
        return web.Response(body=_encode(contents), content_type="application/json")

    async def _meet(self, request: web.Request) -> web.Response:
        try:
            meet = msgspec.json.decode(await request.read(), type=Meet)
        except msgspec.DecodeError as error:
            return web.Response(status=400, text=str(error))
        if meet.engine_id not in {None, self._driver.engine_id}:
            return web.Response(status=404, text="engine ID mismatch")
        found = await self._rooms.take(meet.name, meet.within_s)
        if found is None:
            return web.Response(status=404, text="nobody offers this")
        return web.json_response(found)

    def _route(
        self, act: Callable[[Message], Sequence[Content]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            try:
                message = msgspec.json.decode(await request.read(), type=Message)
            except msgspec.DecodeError as error:
                return web.Response(status=400, text=str(error))
            if self._driver.engine.dead is not None:
                return web.Response(status=503, text="the engine is dead")
            if message.engine_id != self._driver.engine_id:
                self._driver.engine.pins.counters.unknown += len(message.blocks) > 0
                return web.Response(status=404, text="engine ID mismatch")
            if act == self._read and len(message.request_ids) != 1:
                return web.Response(status=400, text="one request is read at a time")
            try:
                body = _encode(act(message))
            except IndexError:
                return web.Response(status=416, text="no such block")
            return web.Response(body=body, content_type="application/json")

        return handle

    def _read(self, message: Message) -> Sequence[Content]:
        return self._driver.read(message.request_ids[0], message.blocks)

    def _return(self, message: Message) -> Sequence[Content]:
        for name in message.request_ids:
            self._driver.take_back(name)
        return []

    def _beat(self, message: Message) -> Sequence[Content]:
        self._driver.beat(message.request_ids)
        return []


class Peers:
    """The other ends: sends messages to engines by the address that their offers name."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http

    async def shake(self, ask: PullAsk) -> None:
        """Find out whether an engine lives. Raises PullError, also for OSError when it refuses."""
        await self._send("shake", ask, Message(engine_id=ask.engine_id, blocks=list(ask.blocks)))

    async def read(self, ask: PullAsk, blocks: Sequence[int]) -> list[Content]:
        """Read blocks. Raises PullError."""
        message = Message(
            engine_id=ask.engine_id, request_ids=[ask.request_id], blocks=list(blocks)
        )
        contents = await self._send("read", ask, message)
        if len(contents) != len(blocks):
            raise PullError("another engine answered with other blocks")
        return contents

    async def hand_back(self, ask: PullAsk) -> None:
        """Say that blocks will not be read. Raises PullError."""
        message = Message(engine_id=ask.engine_id, request_ids=[ask.request_id])
        await self._send("return", ask, message)

    async def beat(self, asks: Sequence[PullAsk]) -> None:
        """Say that requests of one engine are still wanted. Raises PullError."""
        names = [ask.request_id for ask in asks]
        await self._send("beat", asks[0], Message(engine_id=asks[0].engine_id, request_ids=names))

    async def meet(self, ask: MeetAsk, within_s: float) -> PullAsk:
        """Ask for an offer, and wait for it. Raises PullError."""
        wish = Meet(name=ask.name, within_s=within_s, engine_id=ask.engine_id)
        limit = aiohttp.ClientTimeout(total=within_s + MESSAGE_TIMEOUT_S)
        try:
            async with self._http.post(
                _url("meet", ask), data=_encode(wish), timeout=limit
            ) as response:
                body = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise PullError(f"another engine was not met: {error}") from error
        if response.status != 200:
            raise RefusedError(body.decode(errors="replace"))
        pull = read_params(msgspec.json.decode(body)).pull
        if pull is None:
            raise PullError("another engine offered nothing that can be pulled")
        return pull

    async def prefix(self, source: MeetAsk, hashes: Sequence[int]) -> list[Content]:
        """What another engine has cached of a chain, from its start. Raises PullError."""
        return await self._send("prefix", source, Chain(hashes=list(hashes)))

    async def _send(
        self, route: str, ask: PullAsk | MeetAsk, message: Message | Chain
    ) -> list[Content]:
        url = _url(route, ask)
        try:
            async with self._http.post(url, data=_encode(message)) as response:
                body = await response.read()
                if response.status != 200:
                    raise RefusedError(body.decode(errors="replace"))
                return msgspec.json.decode(body, type=list[Content])
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            # A name that is no host, and an answer that is no JSON, are ValueErrors.
            raise PullError(f"another engine did not answer: {error}") from error


def _url(route: str, at: PullAsk | MeetAsk) -> str:
    host = f"[{at.host}]" if ":" in at.host else at.host
    return f"http://{host}:{at.port}/{route}"


class RefusedError(PullError):
    """Another engine answers, but not for this life of it, or not for these blocks."""
