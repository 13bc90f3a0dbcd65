"""What one simulated engine has encoded, or has from others that did.

With an `ec_role` of producer it tells where its embeddings are to be had, or puts their names into
the storage that engines share; with that of consumer it takes them from there. Whatever cannot be
had is encoded here.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from urllib.parse import quote

import aiohttp
from xxhash import xxh3_128_hexdigest

from epp.sim import media
from epp.sim.settings import EngineSettings

MAX_KNOWN = 4096
"""Items whose embeddings are kept, those used last."""
FETCH_S = 2.0


class Embeddings:
    """One engine's. `port` is set once it listens."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._known: OrderedDict[str, None] = OrderedDict()
        self.port = settings.port
        self.encoded = 0
        """Items that were computed here."""
        self.received = 0
        """Items that came from elsewhere."""

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def forget(self) -> None:
        """A new life: nothing is kept."""
        self._known.clear()

    async def take(self, names: Sequence[str], told: Mapping[str, media.Peer]) -> None:
        """Have the embeddings of these items; `told`: where a request says that they are."""
        for name in names:
            if name not in self._known:
                await self._get(name, told.get(name))
            self._known[name] = None
            self._known.move_to_end(name)
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)

    def params(self, names: Sequence[str]) -> dict[str, object] | None:
        """`ec_transfer_params` of an answer; None where this engine tells nothing."""
        settings = self._settings
        if settings.ec_role not in {"producer", "both"} or settings.ec_storage is not None:
            return None
        return {name: media.Peer(settings.host, self.port) for name in names}

    async def _get(self, name: str, peer: media.Peer | None) -> None:
        settings = self._settings
        storage = None
        if settings.ec_storage is not None:  # a client's name is no name of a file
            storage = settings.ec_storage / xxh3_128_hexdigest(name.encode())
        if settings.ec_role in {"consumer", "both"}:
            found = storage is not None and storage.exists()
            if found or (peer is not None and await _has(peer, name)):
                self.received += 1
                return
        await asyncio.sleep(settings.encode_s)
        self.encoded += 1
        if storage is not None and settings.ec_role in {"producer", "both"}:
            storage.touch()


async def _has(peer: media.Peer, name: str) -> bool:
    """Whether the peer still has them."""
    host = f"[{peer.peer_host}]" if ":" in peer.peer_host else peer.peer_host
    url = f"http://{host}:{peer.peer_port}/embeddings/{quote(name, safe='')}"
    timeout = aiohttp.ClientTimeout(total=FETCH_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(url) as response,
        ):
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False
