"""Certificates of the sidecar's connections, read again when their files change.

New connections use what the files said last, running ones keep what they began with. Files that do
not work together change nothing.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from epp.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Who this side is, and whom it believes, on one kind of connection."""

    cert: Path | None = None
    """Certificate chain that is shown; None shows none."""
    key: Path | None = None
    ca: Path | None = None
    """Who signs the other side's. None: a client believes whom the system trusts, a server asks
    its clients for no certificate."""
    insecure: bool = False
    """Client only: believe anybody."""
    name: str | None = None
    """Client only: the name in the server's certificate; None: the address that is spoken to."""

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(path for path in (self.cert, self.key, self.ca) if path is not None)


class ServerTls:
    """What a listener shows. `context` is for the listener's whole life."""

    def __init__(self, files: TlsFiles) -> None:
        """Raises ConfigError."""
        self.files = files
        self.current = server_context(files)
        """What handshakes use."""
        self.context = server_context(files)
        self.context.sni_callback = self._choose

    def take(self, context: ssl.SSLContext) -> None:
        """Handshakes from now on use this one."""
        self.current = context

    def _choose(self, connection: Any, _name: str | None, _context: ssl.SSLContext) -> None:
        """Called in each handshake, also by clients that name no server."""
        connection.context = self.current


@dataclass(slots=True)
class ClientTls:
    """What connections to one kind of server are made with."""

    files: TlsFiles
    current: ssl.SSLContext = field(init=False)
    """For the next connection."""

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        self.current = client_context(self.files)

    def take(self, context: ssl.SSLContext) -> None:
        """Connections from now on use this one."""
        self.current = context

    def name_for(self, host: str) -> str:
        """The name that the server at this address must prove."""
        return self.files.name or host


@dataclass(frozen=True, slots=True)
class Outward:
    """How to speak to others; None is plain text."""

    engine: ClientTls | None = None
    peers: ClientTls | None = None


PLAIN = Outward()


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """Raises ConfigError for files that cannot be used."""

    def make() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if files.ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    return _filled(files, make)


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """Raises ConfigError for files that cannot be used."""

    def make() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if files.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif files.ca is None:
            context.load_default_certs()
        return context

    return _filled(files, make)


def _filled(files: TlsFiles, make: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
    where = ", ".join(str(path) for path in files.paths)
    try:
        context = make()
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if files.cert is not None:
            context.load_cert_chain(files.cert, files.key)
        if files.ca is not None:
            context.load_verify_locations(files.ca)
    except OSError as error:  # such as ssl.SSLError
        raise ConfigError(where, f"cannot be used: {error.strerror or error}") from error
    return context
