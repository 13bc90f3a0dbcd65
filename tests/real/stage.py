"""A prefill member whose timing a test directs: the real prefill sidecar stands behind it.

It takes the signed leg of a decode sidecar, signs one of its own for the real prefill sidecar, and
does what the test says between that one's answer and its own. So a real engine can be made to die,
or a real lease to end, at any point of a handoff.
"""

import asyncio
import json
import random
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from epp.protocol import PREFILLER
from epp.sim.fleets import probes
from epp.sim.fleets.parts import POOL, own_command
from epp.sim.fleets.ports import HOST, free_ports
from epp.sim.fleets.supervisor import Part
from sidecar.transfer.files import read_leg_keys
from sidecar.transfer.legs import LEG_HEADER, Leg, LegKeys
from tests.real.conftest import ANSWER_S, DECODE, PREFILL, Answer, Ask, Real
from tests.timing import scaled

Interlude = Callable[[], Awaitable[None]]
NAME = "stage-sidecar"


async def nothing() -> None:
    """No interlude."""


@dataclass(slots=True)
class Stage:
    """`before` happens before the real prefill is asked, `answered` once it has answered, and
    `between` after the head of that was passed on, from when the rest has a few seconds."""

    real: Real
    keys: LegKeys
    port: int = 0
    sidecar_port: int = 0
    metrics_port: int = 0
    before: Interlude = nothing
    answered: Interlude = nothing
    between: Interlude = nothing
    legs: int = 0
    answers: list[bytes] = field(default_factory=list)
    """What the real prefill answered, parameters included."""
    left: int = 0
    """Legs that were given up while they waited."""

    @property
    def sidecar(self) -> str:
        """The decode sidecar that has this stage as a member."""
        return f"http://{HOST}:{self.sidecar_port}"

    async def ask(self, ask: Ask, *, limit_s: float = ANSWER_S) -> Answer:
        """Send it as a picker would that chose the stage to prefill."""
        return await self.real.ask(self.sidecar, ask, self.headers, limit_s=limit_s)

    @property
    def headers(self) -> dict[str, str]:
        return {PREFILLER: f"{HOST}:{self.port}"}

    async def prefill(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Ask the real prefill sidecar as a decode sidecar does."""
        target = f"{HOST}:{self.real.fleet.settings.ports.sidecars[PREFILL]}"
        request_id = f"stage-{secrets.token_hex(8)}"
        leg = Leg(method="POST", path=path, request_id=request_id, target=target)
        headers = {
            "content-type": "application/json",
            "x-request-id": request_id,
            LEG_HEADER: self.keys.sign(leg, time.time_ns() / 1e9),
        }
        url = f"http://{target}{path}"
        async with self.real.fleet.session.post(url, data=body, headers=headers) as answer:
            return answer.status, await answer.read()

    async def known(self) -> None:
        """Return when its sidecar has read who the members are."""
        async with asyncio.timeout(scaled(10)):
            while True:
                if "epp_sidecar_pool_members 2.0" in await self.real.page(self.metrics_port):
                    return
                await asyncio.sleep(0.05)

    async def handoffs(self) -> dict[tuple[str, str], int]:
        """What its sidecar counted, by outcome and reason."""
        return await self.real.handoffs(self.metrics_port)

    async def counted(self, expected: dict[tuple[str, str], int]) -> None:
        """Assert what its sidecar counted."""
        await self.real.counted(expected, self.metrics_port)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.legs += 1
        assert LEG_HEADER in request.headers
        body = await request.read()
        try:
            await self.before()
            status, answer = await self.prefill(request.path, body)
            self.answers.append(answer)
            await self.answered()
            response = web.StreamResponse(status=status)
            response.content_type = "application/json"
            response.content_length = len(answer)
            await response.prepare(request)  # the head goes out: the prefill is committed
            await self.between()
            await response.write(answer)
        except (asyncio.CancelledError, ConnectionError):
            self.left += 1
            raise
        return response


@asynccontextmanager
async def staged(real: Real, directory: Path, *flags: str) -> AsyncIterator[Stage]:
    """A stage, and a sidecar of its own before the real decode engine, with these flags more."""
    stage = Stage(real, read_leg_keys(real.fleet.parts.leg_key_file))
    app = web.Application()
    app.router.add_post("/{path:.*}", stage.handle)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, HOST, 0)
    await site.start()
    stage.port = runner.addresses[0][1]
    stage.sidecar_port, stage.metrics_port = free_ports(2, random.SystemRandom())
    endpoints = directory / "stage.json"
    members = [("stage", stage.port), ("decode", stage.sidecar_port)]
    entries = [{"name": name, "address": HOST, "port": port} for name, port in members]
    endpoints.write_text(json.dumps({"endpoints": entries}))
    command = own_command(
        "sidecar",
        *("--host", HOST, "--port", str(stage.sidecar_port)),
        *("--metrics-port", str(stage.metrics_port)),
        *("--pool-name", POOL, "--name", "default/decode", "--engine-url", real.engine(DECODE)),
        *("--state-url", f"tcp://{HOST}:{real.fleet.settings.ports.state}"),  # not a member there
        *("--endpoints-file", str(endpoints)),
        *("--leg-key-file", str(real.fleet.parts.leg_key_file)),
        *("--settle", "0", "--grace", "1", "--log-format", "text", *flags),
    )
    part = Part(
        name=NAME,
        command=command,
        address=stage.sidecar,
        probe=probes.http(stage.sidecar_port, "/health"),
    )
    real.fleet.supervisor.start(part)
    try:
        await real.fleet.supervisor.wait_ready([NAME])
        await stage.known()
        yield stage
    finally:
        await real.fleet.supervisor.stop(NAME)
        await runner.cleanup()
