"""A certificate that is read again when its files change, without a restart.

New connections get the new certificate, running ones keep theirs. A pair that cannot work, or half
of a new one, keeps the old: the change is told and counted.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from epp.config.watched import Mark, changes, mark
from epp.errors import ConfigError

from .tls import read_pair

INTERVAL_S = 0.5
SETTLE_S = 0.25
"""How long files stand still before they are read: certificate and key are two writes."""

Pair = tuple[bytes, bytes]
"""Certificate chain and private key, PEM."""


@dataclass(slots=True)
class Certificate:
    """`tls.crt` and `tls.key` of a directory. Raises ConfigError if they cannot work at first."""

    directory: Path
    taken: int = field(default=0, init=False)
    """Changes that were taken."""
    refused: int = field(default=0, init=False)
    """Changes that kept the old certificate."""
    _pair: Pair = field(init=False)
    _seen: Mark = field(init=False)
    """The files as they were before they were first read."""

    def __post_init__(self) -> None:
        self._seen = mark(*self._files)
        self._pair = read_pair(self.directory)

    def credentials(self) -> grpc.ServerCredentials:
        """For the port; a handshake gets the certificate of its moment."""
        return grpc.dynamic_ssl_server_credentials(_configuration(self._pair), self._fetch)

    def _fetch(self) -> grpc.ServerCertificateConfiguration:
        """Called at each handshake, by a thread of gRPC's."""
        return _configuration(self._pair)

    async def follow(
        self,
        on_change: Callable[[ConfigError | None], None],
        *,
        interval_s: float = INTERVAL_S,
        settle_s: float = SETTLE_S,
    ) -> None:
        """Look at the files for ever; `on_change` hears of each change, and why it was refused.

        It looks at what the names lead to, so the symlink swaps of a mounted Secret count too.
        """
        looking = changes(*self._files, seen=self._seen, interval_s=interval_s, settle_s=settle_s)
        async for _ in looking:
            on_change(await asyncio.to_thread(self._read))

    def _read(self) -> ConfigError | None:
        try:
            self._pair = read_pair(self.directory)
        except ConfigError as error:
            self.refused += 1
            return error
        self.taken += 1
        return None

    @property
    def _files(self) -> tuple[Path, ...]:
        return self.directory / "tls.crt", self.directory / "tls.key"


def _configuration(pair: Pair) -> grpc.ServerCertificateConfiguration:
    certificate, key = pair
    return grpc.ssl_server_certificate_configuration([(key, certificate)])
