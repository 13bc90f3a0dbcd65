"""What the data-plane tests stand on: echo pods, pickers with conformance aids, real Envoys."""

import asyncio
import json
import random
import tomllib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from epp import app, protocol
from epp.config.serve import serve_settings
from epp.errors import LocalError
from epp.sim.fleets.ports import free_ports
from epp.sim.gateway.envoy import EnvoySettings
from epp.sim.gateway.routes import EVERY_PATH
from tests.conformance.shipped import SHIPPED, Shipped
from tests.fakes.gateway import Gateway, gateway

LIST: dict[str, Any] = tomllib.loads((Path(__file__).parent / "data_plane.toml").read_text())
BODY = {"model": "conformance-fake-model", "prompt": "Write as if you were a critic: San Francisco"}
_PORTS = ("grpc_port", "grpc_health_port", "metrics_port", "admin_port", "state_port")


def each_configuration(function: str) -> Any:
    """Parametrise a test by our configurations: `shipped`, and whether it `can` do this."""
    cannot: dict[str, str] = {}
    for entry in LIST["test"]:
        if entry["function"] == function:
            cannot |= entry.get("cannot", {})
    cases = [pytest.param(each, each.name not in cannot, id=each.name) for each in SHIPPED]
    return pytest.mark.parametrize(("shipped", "can"), cases)


@dataclass(slots=True)
class Pods:
    """Pods by address, all with the same ports."""

    hosts: tuple[str, ...]
    ports: tuple[int, ...]

    @property
    def addresses(self) -> list[str]:
        return [f"{host}:{port}" for host in self.hosts for port in self.ports]

    def file(self, path: Path) -> Path:
        """Written as the picker reads it."""
        entries = [
            {"name": f"pod-{host}-{port}", "address": host, "port": port, "sidecar": False}
            for host in self.hosts
            for port in self.ports
        ]
        path.write_text(json.dumps({"endpoints": entries}))
        return path


@asynccontextmanager
async def pods(*hosts: str, ports: int = 1) -> AsyncIterator[Pods]:
    """Echo servers at these addresses of loopback: they say who they are and what they got."""

    async def echo(request: web.Request) -> web.Response:
        await request.read()
        assert request.transport is not None
        host, port = request.transport.get_extra_info("sockname")[:2]
        got = {name.lower(): value for name, value in request.headers.items()}
        return web.json_response({"pod": host, "port": port, "path": request.path, "headers": got})

    application = web.Application()
    application.router.add_route("*", "/{tail:.*}", echo)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        found = [await _listen(runner, hosts) for _ in range(ports)]
        yield Pods(hosts, tuple(found))
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, hosts: Sequence[str]) -> int:
    """One port that is free at all of these addresses."""
    for port in free_ports(20, random.SystemRandom()):
        sites = [web.TCPSite(runner, host, port) for host in hosts]
        try:
            for site in sites:
                await site.start()
        except OSError:
            for site in sites:
                if site in runner.sites:
                    await site.stop()
            continue
        return port
    raise LocalError("no port is free at all addresses")


@dataclass(slots=True)
class Picker:
    """A running `epp serve`."""

    ports: app.Ports
    stopping: asyncio.Event


@asynccontextmanager
async def picker(file: Path, *, destinations: int = 1) -> AsyncIterator[Picker]:
    """Ours with its conformance aids, TLS, and everything else as it comes."""
    settings = serve_settings(
        {
            "endpoints_file": file,
            "host": "127.0.0.1",
            "pool_name": "conformance-pool",
            "pool_namespace": "inference-conformance-app-backend",
            "conformance": True,
            "max_endpoints": destinations,
            "drain_timeout_s": 0,
            "decision_deadline_s": 5,
            **dict.fromkeys(_PORTS, 0),
        }
    )
    bound: asyncio.Future[app.Ports] = asyncio.get_running_loop().create_future()
    stopping = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(app.serve(settings, started=bound.set_result, stop=stopping))
        try:
            yield Picker(await bound, stopping)
        finally:
            stopping.set()


Edit = Callable[[dict[str, Any]], None]


def manager(config: dict[str, Any]) -> Any:
    (listener,) = config["static_resources"]["listeners"]
    return listener["filter_chains"][0]["filters"][0]["typed_config"]


@asynccontextmanager
async def envoy(
    directory: Path,
    shipped: Shipped,
    ext_proc_port: int,
    endpoints: Sequence[str],
    *,
    edit: Edit = lambda _: None,
    **changes: Any,
) -> AsyncIterator[Gateway]:
    """One of our configurations, but for what a conformance run needs: any path passes, and so
    does the header with which a test chooses. `edit` changes more."""

    def edited(bootstrap: str) -> str:
        config = json.loads(bootstrap)
        (early,) = manager(config)["early_header_mutation_extensions"]
        early["typed_config"]["mutations"].remove({"remove": protocol.CONFORMANCE_SELECTION})
        edit(config)
        return json.dumps(config)

    settings = EnvoySettings(
        listen_port=0,
        admin_port=0,
        ext_proc_port=ext_proc_port,
        endpoints=endpoints,
        shape=shipped.shape,
        response_trailers=shipped.trailers,
        api_paths=EVERY_PATH,
        health_interval_s=0.1,
    )
    async with gateway(directory, replace(settings, **changes), edit=edited) as running:
        yield running


@dataclass(slots=True)
class Answer:
    """What a client got: who answered, and who the picker says served."""

    status: int
    pod: str = ""
    address: str = ""
    said: str | None = None
    text: str = ""


async def ask(
    client: aiohttp.ClientSession,
    url: str,
    *,
    choose: Sequence[str] = (),
    method: str = "POST",
) -> Answer:
    """A request as the suite makes it, for the endpoints in `choose` if any."""
    headers = {protocol.CONFORMANCE_SELECTION: ",".join(choose)} if choose else {}
    body = BODY if method == "POST" else None
    async with client.request(method, url, json=body, headers=headers) as response:
        said = response.headers.get(protocol.CONFORMANCE_SERVED)
        text = await response.text()
        if response.status != 200 or response.content_type != "application/json":
            return Answer(response.status, said=said, text=text)
        got = json.loads(text)
        return Answer(200, got["pod"], f"{got['pod']}:{got['port']}", said, text)


async def many(count: int, width: int, one: Callable[[], Any]) -> list[Answer]:
    """`count` requests, `width` of them at a time."""
    answers: list[Answer] = []
    left = iter(range(count))

    async def worker() -> None:
        answers.extend([await one() for _ in left])

    async with asyncio.TaskGroup() as tasks:
        for _ in range(width):
            tasks.create_task(worker())
    return answers


@dataclass(slots=True)
class Plane:
    """One gateway, its picker and its pods."""

    pods: Pods
    picker: Picker
    gateway: Gateway
    client: aiohttp.ClientSession

    async def ask(
        self, *choose: str, method: str = "POST", path: str = "/primary-gateway-test"
    ) -> Answer:
        return await ask(self.client, f"{self.gateway.url}{path}", choose=choose, method=method)


@asynccontextmanager
async def plane(
    directory: Path,
    shipped: Shipped,
    *hosts: str,
    ports: int = 1,
    destinations: int = 1,
    **changes: Any,
) -> AsyncIterator[Plane]:
    """Everything of one pool."""
    async with AsyncExitStack() as stack:
        echo = await stack.enter_async_context(pods(*hosts, ports=ports))
        file = echo.file(directory / f"pool-{hosts[0]}.json")
        chosen = await stack.enter_async_context(picker(file, destinations=destinations))
        running = envoy(
            directory / f"envoy-{hosts[0]}", shipped, chosen.ports.grpc, echo.addresses, **changes
        )
        front = await stack.enter_async_context(running)
        client = await stack.enter_async_context(aiohttp.ClientSession())
        yield Plane(echo, chosen, front, client)
