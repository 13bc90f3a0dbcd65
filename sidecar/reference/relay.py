"""The shell on aiohttp: its server towards clients, `upstream` towards engines."""

from aiohttp import web

from sidecar.http.service import Service
from sidecar.http.shell import Shell
from sidecar.proxy import Listen

from .reply import AiohttpClient
from .serving import Server

CLOSE_S = 2.0
"""How long handlers whose client has left may take to end once they are cut."""


class AiohttpRelay(Shell):
    """A `proxy.Relay`. Give it to one event loop; `start` it once. It bounds no connections."""

    def __init__(self, *, listen: Listen, service: Service) -> None:
        super().__init__(listen, service)
        self._runners: list[web.ServerRunner] = []

    @property
    def engine_connections(self) -> int:
        """Not counted: aiohttp keeps them to itself."""
        return 0

    @property
    def spare_engine_connections(self) -> int:
        """Nor are these."""
        return 0

    @property
    def connections(self) -> int:
        servers = (runner.server for runner in self._runners)
        return sum(len(server.connections) for server in servers if server is not None)

    async def start(self) -> int:
        await self._service.upstream.__aenter__()
        try:
            port = await self._serve_on(self._listen.port, on_leg_port=False)
            if self._listen.leg_port is not None:
                self.leg_port = await self._serve_on(self._listen.leg_port, on_leg_port=True)
        except OSError:
            await self.close()
            raise
        return port

    async def _serve_on(self, port: int, *, on_leg_port: bool) -> int:
        server = Server(
            lambda request: self._handle(request, on_leg_port=on_leg_port), self._service.limits
        )
        runner = web.ServerRunner(server, shutdown_timeout=0.5)
        self._runners.append(runner)
        await runner.setup()
        listen = self._listen
        await web.TCPSite(runner, listen.host, port, backlog=1024, ssl_context=listen.tls).start()
        return int(runner.addresses[0][1])

    async def close(self) -> None:
        for runner in self._runners:
            await runner.cleanup()
        await self._service.cut(CLOSE_S)
        await self._service.upstream.__aexit__()

    async def _handle(self, request: web.BaseRequest, *, on_leg_port: bool) -> web.StreamResponse:
        client = AiohttpClient(request, self._service.limits, on_leg_port=on_leg_port)
        await self._service.serve(client)
        return client.response
