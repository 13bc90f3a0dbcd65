"""Everything that connects one simulated engine to others, for as long as its server runs."""

import asyncio
import socket
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import web

from epp.errors import LocalError
from epp.sim.engine import Engine
from epp.sim.hashing import Namespace
from epp.sim.serving.driver import Driver
from epp.sim.serving.faults import FaultBox
from epp.sim.serving.puller import Puller
from epp.sim.serving.rooms import Rooms
from epp.sim.serving.side_channel import MESSAGE_TIMEOUT_S, Peers, PullError, SideChannel
from epp.sim.serving.state_page import describe_transfers
from epp.sim.serving.storage import Storage
from epp.sim.settings import EngineSettings
from epp.sim.submission import Step
from epp.sim.transfer import MeetAsk, Offer, PullAsk


class Handover:
    """One engine's side channel and its pulls. Enter it to listen.

    Raises LocalError on entry when the port cannot be had.
    """

    def __init__(
        self,
        settings: EngineSettings,
        driver: Driver,
        faults: FaultBox,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._settings = settings
        self._driver = driver
        self._faults = faults
        self._tasks = tasks
        self.host = settings.advertise_host or settings.side_channel_host or settings.host
        """`remote_host` of what this engine offers."""
        self.port = settings.side_channel_port
        self._rooms = Rooms()
        self._storage = Storage(settings.kv_storage) if settings.kv_storage else None
        self.puller: Puller

    async def __aenter__(self) -> Self:
        listener = self._listen()
        self._runner = web.AppRunner(
            SideChannel(self._driver, self._rooms).app(), access_log=None, shutdown_timeout=0.1
        )
        await self._runner.setup()
        await web.SockSite(self._runner, listener).start()
        timeout = aiohttp.ClientTimeout(total=MESSAGE_TIMEOUT_S)
        self._http = aiohttp.ClientSession(timeout=timeout)
        self._peers = Peers(self._http)
        self.puller = Puller(self._settings, self._faults, self._peers, self._tasks)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.puller.stop()
        await self._http.close()
        await self._runner.cleanup()

    def carry(self, engine: Engine, step: Step) -> None:
        """Do what a step of the engine asks for."""
        self.puller.carry(self._driver, engine, step)

    def params(self, offer: Offer) -> dict[str, object]:
        """`kv_transfer_params` for the engine that will pull."""
        return offer.params(engine_id=self._driver.engine_id, host=self.host, port=self.port)

    def offered(self, name: str, offer: Offer) -> None:
        """Keep an offer for whoever asks for it by this name."""
        self._rooms.put(name, self.params(offer))

    async def met(self, ask: MeetAsk) -> PullAsk:
        """The offer that another engine has, or will have, under a name. Raises PullError."""
        return await self._peers.meet(ask, self._settings.meet_s)

    async def fetch(self, source: MeetAsk, prompt: Sequence[int], namespace: Namespace) -> None:
        """Cache what another engine has cached of a prompt; nothing where it cannot be had."""
        engine = self._driver.engine
        with suppress(PullError):
            contents = await self._peers.prefix(source, engine.hashes_of(prompt, namespace))
            if engine is self._driver.engine:
                engine.adopt(prompt, namespace, contents)

    def store(self, prompt: Sequence[int], namespace: Namespace, offer: Offer) -> None:
        """Write what the prompt's blocks hold into the storage; nobody else will read them here."""
        assert self._storage is not None
        count = -(-len(prompt) // self._settings.block_tokens)
        contents = self._driver.read(offer.request_id, offer.blocks[:count])
        self._storage.save(prompt, namespace, contents)

    def stored(self, prompt: Sequence[int], namespace: Namespace) -> PullAsk | None:
        """The prompt's blocks from the storage, if they are there."""
        contents = self._storage.load(prompt, namespace) if self._storage else None
        if not contents:
            return None
        return PullAsk(
            engine_id="storage",
            request_id="",
            host="",
            port=0,
            blocks=tuple(range(len(contents))),
            heartbeats=False,
            stored=contents,
        )

    def state(self) -> dict[str, object]:
        """What `/admin/state` shows of it."""
        return {
            "engine_id": self._driver.engine_id,
            "host": self.host,
            "port": self.port,
            "failed_notices": self.puller.failed_notices,
            **describe_transfers(self._driver.engine),
        }

    def _listen(self) -> socket.socket:
        host = self._settings.side_channel_host or self._settings.host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listener = socket.create_server((host, self._settings.side_channel_port), family=family)
        except OSError as error:
            raise LocalError(
                f"The engine cannot hand over KV on {host}:{self._settings.side_channel_port} "
                f"({error.strerror or error}); choose another side channel port."
            ) from error
        self.port = listener.getsockname()[1]
        return listener
