"""All certificates of one sidecar, made from its settings."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from sidecar.settings import SidecarSettings
from sidecar.transfer.files import Followed

from .tls import PLAIN, ClientTls, Outward, ServerTls, client_context, server_context


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """How this sidecar speaks TLS, as far as it does."""

    server: ServerTls | None = None
    outward: Outward = PLAIN

    @classmethod
    def of(cls, settings: SidecarSettings) -> "Certificates":
        """Raises ConfigError for files that cannot be used."""
        server, peers = settings.server_tls, settings.peer_tls
        engine = settings.engine_tls if settings.engine_url.startswith("https:") else None
        return cls(
            server=None if server is None else ServerTls(server),
            outward=Outward(
                engine=None if engine is None else ClientTls(engine),
                peers=None if peers is None else ClientTls(peers),
            ),
        )

    def followed(self) -> "dict[str, Followed[Any]]":
        server, engine, peers = self.server, self.outward.engine, self.outward.peers
        found: dict[str, Followed[Any]] = {}
        if server is not None:
            read = partial(server_context, server.files)
            found["tls"] = Followed(paths=server.files.paths, read=read, take=server.take)
        for name, client in (("engine-tls", engine), ("leg-tls", peers)):
            if client is not None:
                read = partial(client_context, client.files)
                found[name] = Followed(paths=client.files.paths, read=read, take=client.take)
        return found
