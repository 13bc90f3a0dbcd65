"""Admin routes of a simulated engine: faults, eviction, restart, crash, and what it counts.

They exist only where the engine listens on a loopback address: they have no authentication.

| route | does |
|---|---|
| `GET`, `POST /admin/faults` | show or replace the faults (`faults.Faults`); `{}` heals |
| `POST /admin/evict` | forget idle cached blocks: `{"all": true}` or `{"prompt": text or ids}` |
| `POST /admin/restart` | as a new process: empty cache, no requests, event sequence from 0 |
| `POST /admin/crash` | end the process at once, without a goodbye on any connection |
| `GET /admin/state` | counters as JSON |
| `GET /admin/requests` | the last requests as received, oldest first (`?after=N`: younger ones) |
| `POST /reset_prefix_cache` | vLLM's own: AllBlocksCleared, unless a request holds blocks |
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
from aiohttp import web

from epp.sim.api import TokenId, bad_request
from epp.sim.hashing import Namespace
from epp.sim.serving.driver import Driver
from epp.sim.serving.faults import FaultBox, Faults
from epp.sim.serving.recorder import Recorder
from epp.sim.tokenizer import encode

CRASH_STATUS = 70


class EvictBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which blocks to forget: all, or those of one prompt."""

    all: bool = False
    prompt: str | list[TokenId] | None = None
    cache_salt: str = ""
    lora: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admin:
    """The admin routes over one engine server."""

    driver: Driver
    faults: FaultBox
    restart: Callable[[], None]
    crash: Callable[[int], object]
    """Ends the process; it must not return in production."""
    state: Callable[[], Mapping[str, object]]
    recorder: Recorder

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/admin/faults", self.show_faults),
            web.post("/admin/faults", self.set_faults),
            web.post("/admin/evict", self.evict),
            web.post("/admin/restart", self.do_restart),
            web.post("/admin/crash", self.do_crash),
            web.get("/admin/state", self.show_state),
            web.get("/admin/requests", self.show_requests),
            web.post("/reset_prefix_cache", self.reset_prefix_cache),
        ]

    async def show_faults(self, _: web.Request) -> web.Response:
        return _json(self.faults.active)

    async def set_faults(self, request: web.Request) -> web.Response:
        try:
            faults = msgspec.json.decode(await request.read() or b"{}", type=Faults)
        except msgspec.DecodeError as error:
            raise bad_request(f"The faults are not valid: {error}") from error
        self.faults.set(faults)
        return _json(faults)

    async def evict(self, request: web.Request) -> web.Response:
        try:
            body = msgspec.json.decode(await request.read(), type=EvictBody)
        except msgspec.DecodeError as error:
            raise bad_request(f"What to evict is not valid: {error}") from error
        if body.all == (body.prompt is not None):
            raise bad_request('give either "all": true or a prompt')
        prompt = encode(body.prompt) if isinstance(body.prompt, str) else body.prompt
        evicted = self.driver.engine.evict(prompt, Namespace(body.lora, body.cache_salt))
        self.driver.flush()
        return _json({"evicted": evicted})

    async def do_restart(self, _: web.Request) -> web.Response:
        self.restart()
        return _json(self.state())

    async def do_crash(self, _: web.Request) -> web.Response:
        self.crash(CRASH_STATUS)
        return web.Response()

    async def show_state(self, _: web.Request) -> web.Response:
        return _json(self.state())

    async def show_requests(self, request: web.Request) -> web.Response:
        after = request.query.get("after", "0")
        if not after.isdecimal():
            raise bad_request("after must be the number of a request")
        received = self.recorder.requests
        return _json([one.shown() for one in received if one.number > int(after)])

    async def reset_prefix_cache(self, _: web.Request) -> web.Response:
        reset = self.driver.engine.reset_prefix_cache()
        self.driver.flush()
        return _json({"reset": reset})


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
