"""The host's pages: what the workers show, as one.

The metrics of all, each series with its worker's number. On the admin port the decisions of all,
the newest first; the state of the first worker, or of another one with `?worker=1`; and the mode,
which is switched everywhere, and stays for workers that are started again.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from epp.observe.admin import MAX_BODY_BYTES, TEXT_FORMAT
from epp.observe.bearer import bearer
from epp.observe.catalogue import HOST
from epp.observe.explain import MAX_DECISIONS
from epp.observe.guide import guide
from epp.observe.merge import merged

from .process import Worker

ASK_S = 5.0
_FROM_ONE = ("/debug/endpoints", "/debug/state", "/debug/mode")


class Modes:
    """The mode that was switched to; None while it is the settings'."""

    def __init__(self) -> None:
        self.now: str | None = None


class Asking:
    """Asks workers for their pages."""

    def __init__(self, workers: Sequence[Worker], session: aiohttp.ClientSession) -> None:
        self._workers = workers
        self._session = session

    async def every(self, port: str, path: str, **request: Any) -> dict[str, bytes]:
        """The answers of those that serve, by number; who does not answer is left out."""
        serving = [(w.number, getattr(w.pages, port)) for w in self._workers if w.pages is not None]
        answers = await asyncio.gather(*(self._ask(own, path, **request) for _, own in serving))
        found = zip(serving, answers, strict=True)
        return {str(number): body for (number, _), (status, body) in found if status == 200}

    async def one(self, number: int | None, path: str, **request: Any) -> tuple[int, bytes]:
        """Status and body of one worker's admin page; None: of the first that serves."""
        for worker in self._workers:
            if worker.pages is not None and number in (None, worker.number):
                return await self._ask(worker.pages.admin, path, **request)
        return 503, b'{"error": "no such worker serves"}'

    async def _ask(self, port: int, path: str, **request: Any) -> tuple[int, bytes]:
        method = request.pop("method", "GET")
        timeout = aiohttp.ClientTimeout(total=ASK_S)
        try:
            async with self._session.request(
                method, f"http://127.0.0.1:{port}{path}", timeout=timeout, **request
            ) as answer:
                return answer.status, await answer.read()
        except (aiohttp.ClientError, OSError, TimeoutError):
            return 502, b'{"error": "the worker does not answer"}'


def metrics_app(workers: Sequence[Worker], asking: Asking) -> web.Application:
    """`/metrics` and `/healthz`."""

    async def page(_: web.Request) -> web.Response:
        pages = await asking.every("metrics", "/metrics")
        texts = {number: body.decode() for number, body in pages.items()}
        text = await asyncio.to_thread(merged, "worker", texts)
        return web.Response(
            body=(_own(workers) + text).encode(), headers={"content-type": TEXT_FORMAT}
        )

    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[guide])
    app.router.add_get("/metrics", page)
    app.router.add_get("/healthz", _alive)
    return app


def admin_app(
    asking: Asking, modes: Modes, *, token: str | None, max_probe_bytes: int
) -> web.Application:
    """As `epp.observe.admin.admin_app`, for all workers. `token`: what each page asks for."""

    async def decisions(request: web.Request) -> web.Response:
        status, body = await asking.one(None, "/debug/decisions", params=request.query)
        if status != 200:
            return _answer(status, body)
        every = await asking.every("admin", "/debug/decisions", params=request.query)
        return web.json_response(_joined([msgspec.json.decode(one) for one in every.values()]))

    async def page(request: web.Request) -> web.Response:
        number = request.query.get("worker")
        if number is not None and not (number.isascii() and number.isdigit()):
            raise web.HTTPBadRequest(text="worker is a number, from 0\n")
        which = None if number is None else int(number[:9])
        return _answer(*await asking.one(which, request.path))

    async def change(request: web.Request) -> web.Response:
        headers = {"content-type": request.content_type}
        given = {"method": "POST", "headers": headers, "data": await request.read()}
        status, body = await asking.one(None, "/debug/mode", **given)
        if status == 200:
            modes.now = msgspec.json.decode(body)["mode"]
            await asking.every("admin", "/debug/mode", **given)
        return _answer(status, body)

    async def probed(request: web.Request) -> web.Response:
        hop = {"host", "content-length", "connection", "transfer-encoding", "authorization"}
        headers = [(k, v) for k, v in request.headers.items() if k.lower() not in hop]
        return _answer(
            *await asking.one(
                None,
                request.path_qs,
                method="POST",
                headers=headers,
                data=await request.read(),
            )
        )

    app = web.Application(
        client_max_size=max_probe_bytes,
        middlewares=[guide] if token is None else [bearer(token), guide],
    )
    app.router.add_get("/debug/decisions", decisions)
    for path in _FROM_ONE:
        app.router.add_get(path, page)
    app.router.add_post("/debug/mode", change)
    app.router.add_post("/v1/routing/probe", probed)
    app.router.add_get("/healthz", _alive)
    return app


def _joined(pages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The decisions of all workers as one page."""
    decisions = [one for page in pages for one in page["decisions"]]
    decisions.sort(key=lambda one: -one["at"])
    since = [page["since"] for page in pages if page["since"] is not None]
    return {
        "decisions": decisions[:MAX_DECISIONS],
        "replica": pages[0]["replica"],
        "kept": sum(page["kept"] for page in pages),
        "since": min(since, default=None),
        "now": max(page["now"] for page in pages),
    }


def _own(workers: Sequence[Worker]) -> str:
    serving = sum(worker.pages is not None for worker in workers)
    restarts = sum(worker.restarts for worker in workers)
    lines: list[str] = []
    for family, value in zip(HOST, (serving, restarts), strict=True):
        lines += [
            f"# HELP {family.name} {family.help}",
            f"# TYPE {family.name} {family.kind}",
            f"{family.name} {value}",
        ]
    return "\n".join(lines) + "\n"


def _answer(status: int, body: bytes) -> web.Response:
    return web.Response(status=status, body=body, content_type="application/json")


async def _alive(_: web.Request) -> web.Response:
    return web.Response(text="ok\n")
