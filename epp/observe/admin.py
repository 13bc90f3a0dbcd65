"""The pages of the metrics port and of the admin port.

The admin port shows decisions and endpoints, says what would become of a request, and switches the
mode. On loopback it asks for no password; elsewhere every page asks for the operator's token. What
is posted must be JSON, which no web page can send across origins unasked.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

import msgspec
from aiohttp import web

from epp.state.pool import PoolState

from . import overview, probe
from .bearer import bearer
from .explain import MAX_DECISIONS, Explain
from .guide import guide
from .merge import merged
from .metrics import Metrics
from .process import ProcessMetrics
from .state_numbers import StateNumbers

DEFAULT_DECISIONS = 50
MAX_BODY_BYTES = 4096
TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"


class Switch(Protocol):
    """The live mode; see `epp.request.profiles.ModeSwitch`."""

    @property
    def mode(self) -> str: ...
    @property
    def modes(self) -> tuple[str, ...]: ...
    def switch(self, mode: str) -> None:
        """Raises ValueError for a word that is not a mode."""


class _Change(msgspec.Struct):
    mode: str


def metrics_app(
    process: ProcessMetrics,
    pools: Mapping[str, Metrics],
    *,
    label: str | None = None,
    clock: Callable[[], float],
) -> web.Application:
    """`/metrics` and `/healthz`. `pools`: by their names, which `label` is given in each of their
    series; None: there is one, which need not be named."""

    def text() -> str:
        pages = {name: metrics.text().decode() for name, metrics in pools.items()}
        if label is None:
            return process.text().decode() + "".join(pages.values())
        return merged(label, {"": process.text().decode(), **pages})

    async def page(_: web.Request) -> web.Response:
        process.refresh()
        for metrics in pools.values():
            metrics.refresh(clock())
        return web.Response(
            body=(await asyncio.to_thread(text)).encode(), headers={"content-type": TEXT_FORMAT}
        )

    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[guide])
    app.router.add_get("/metrics", page)
    app.router.add_get("/healthz", _alive)
    return app


def pools_app(apps: Mapping[str, web.Application], *, token: str | None) -> web.Application:
    """The pages of several pools, each below `/pools/<name>`, and `/pools`, which names them.

    `token`: as `admin_app` has it; the pools' own pages ask for theirs.
    """

    async def names(_: web.Request) -> web.Response:
        return _json({"pools": [{"name": name, "pages": f"/pools/{name}"} for name in apps]})

    app = web.Application(
        client_max_size=MAX_BODY_BYTES,
        middlewares=[guide] if token is None else [bearer(token), guide],
    )
    app.router.add_get("/pools", names)
    app.router.add_get("/healthz", _alive)
    for name, pages in apps.items():
        app.add_subapp(f"/pools/{name}", pages)
    return app


def admin_app(
    *,
    explain: Explain,
    pool: PoolState,
    switch: Switch,
    clock: Callable[[], float],
    preview: probe.Preview,
    numbers: StateNumbers,
    token: str | None = None,
    max_probe_bytes: int = probe.MAX_BODY_BYTES,
) -> web.Application:
    """`/debug/decisions`, `/debug/endpoints`, `/debug/state` (the endpoints and all else that
    is known), `/debug/mode`, `/v1/routing/probe` and `/healthz`.

    `token`: what each of them asks for; None: anybody may see them. `max_probe_bytes`: longest
    body of a request that is asked about.
    """

    async def decisions(request: web.Request) -> web.Response:
        limit = _limit(request.query.get("limit"))
        found = explain.last(limit, request.query.get("request_id"))
        return _json(
            {
                "decisions": found,
                "replica": explain.replica,
                "kept": len(explain),
                "since": explain.since,
                "now": explain.now,
            }
        )

    async def probed(request: web.Request) -> web.Response:
        return _json(
            await probe.answer(
                request,
                preview=preview,
                explain=explain,
                clock=clock,
                max_body_bytes=max_probe_bytes,
            )
        )

    async def endpoints(_: web.Request) -> web.Response:
        return _json({"endpoints": whole()["endpoints"]})

    async def state(_: web.Request) -> web.Response:
        return _json(whole())

    def whole() -> dict[str, Any]:
        return overview.page(pool, numbers, mode=str(switch.mode), now=clock())

    async def mode(_: web.Request) -> web.Response:
        return _json({"mode": str(switch.mode), "modes": [str(name) for name in switch.modes]})

    async def change(request: web.Request) -> web.Response:
        if request.content_type != "application/json":
            raise web.HTTPUnsupportedMediaType(text="send application/json\n")
        try:
            switch.switch(msgspec.json.decode(await request.read(), type=_Change).mode)
        except (msgspec.MsgspecError, ValueError):
            known = ", ".join(str(name) for name in switch.modes)
            raise web.HTTPBadRequest(text=f'send {{"mode": …}} with one of: {known}\n') from None
        return await mode(request)

    app = web.Application(
        client_max_size=MAX_BODY_BYTES,
        middlewares=[guide] if token is None else [bearer(token), guide],
    )
    app.router.add_get("/debug/decisions", decisions)
    app.router.add_get("/debug/endpoints", endpoints)
    app.router.add_get("/debug/state", state)
    app.router.add_get("/debug/mode", mode)
    app.router.add_post("/debug/mode", change)
    app.router.add_post("/v1/routing/probe", probed)
    app.router.add_get("/healthz", _alive)
    return app


@asynccontextmanager
async def serve(app: web.Application, host: str, port: int) -> AsyncIterator[int]:
    """Listen until the block ends; gives the port, which 0 leaves to the system. Raises OSError."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


async def _alive(_: web.Request) -> web.Response:
    return web.Response(text="ok\n")


def _limit(text: str | None) -> int:
    if text is None:
        return DEFAULT_DECISIONS
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:9]) <= MAX_DECISIONS:
        raise web.HTTPBadRequest(text=f"limit is a number from 1 to {MAX_DECISIONS}\n")
    return int(text)


def _json(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
