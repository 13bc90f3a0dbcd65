"""A proxy for prefill and decode as small as people write them, to be measured against.

It asks the prefill engine for one token, hands its parameters to the decode engine, and passes that
answer on. Nothing is checked, bounded, tried again or counted.

`python -m epp.sim.benches.toy PORT http://ENGINE`
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvloop
from aiohttp import ClientSession, TCPConnector, web

_ASK = {"do_remote_decode": True, "do_remote_prefill": False}


class Toy:
    """Both engines may be the same one."""

    def __init__(self, prefill: str, decode: str, session: ClientSession) -> None:
        self._prefill, self._decode, self._session = prefill, decode, session

    async def serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        first = {**body, "max_tokens": 1, "stream": False, "kv_transfer_params": _ASK}
        async with self._session.post(self._prefill + request.path, json=first) as prefilled:
            params = (await prefilled.json())["kv_transfer_params"]
        second = {**body, "kv_transfer_params": params}
        async with self._session.post(self._decode + request.path, json=second) as decoded:
            answer = web.StreamResponse(
                status=decoded.status, headers={"content-type": decoded.headers["content-type"]}
            )
            await answer.prepare(request)
            async for piece in decoded.content.iter_any():
                await answer.write(piece)
            await answer.write_eof()
        return answer


@asynccontextmanager
async def serving(
    port: int, prefill: str, decode: str, host: str = "127.0.0.1"
) -> AsyncIterator[int]:
    """The port that it listens at. Raises OSError when it is taken."""
    async with ClientSession(connector=TCPConnector(limit=0)) as session:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/{path:.*}", Toy(prefill, decode, session).serve)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
            yield int(runner.addresses[0][1])
        finally:
            await runner.cleanup()


async def main(port: int, engine: str) -> None:
    async with serving(port, engine, engine):
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), sys.argv[2]))
