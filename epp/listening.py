"""What `epp serve` opens beside ext_proc: pages, a client, a group of tasks."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
from aiohttp import web

from epp.errors import CannotListen
from epp.observe import admin


@asynccontextmanager
async def pages(app: web.Application, host: str, port: int, name: str) -> AsyncIterator[int]:
    """Serve `app`; gives the port. `name`: of the port, as its flag has it. Raises CannotListen."""
    async with AsyncExitStack() as stack:
        try:
            bound = await stack.enter_async_context(admin.serve(app, host, port))
        except OSError as error:
            raise CannotListen(
                f"{name} pages", f"{host}:{port}", error, f"--{name}-port"
            ) from error
        yield bound


class _Over(Exception):
    """The application stops: ends the group from inside."""


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """A TaskGroup that ends with its context: what still runs then is cancelled."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
            raise _Over
    except* _Over:
        pass


def client() -> aiohttp.ClientSession:
    """For `/tokenize`: no cookies, no redirects, no limit but the callers' own."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=64, keepalive_timeout=4),
        timeout=aiohttp.ClientTimeout(total=None),
        cookie_jar=aiohttp.DummyCookieJar(),
    )
