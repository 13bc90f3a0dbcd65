"""The relay: what moves requests to the engine and answers back, behind one small interface.

`app.py` knows only `Relay`, `Journal` and `Ended`; `relay` is ours, `reference` the one on aiohttp.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from epp.bodies.usage import Unknown, Usage


class Outcome(Enum):
    """How an exchange ended. The values are metric labels."""

    __hash__ = object.__hash__
    """Members are themselves; the one of `Enum` is looked up by name, in Python."""

    OK = "ok"
    """The engine's whole answer reached the client, with a status below 400."""
    ENGINE_ERROR = "engine-error"
    """The engine, or the sidecar in its place, answered with an error status."""
    ENGINE_GONE = "engine-gone"
    """The engine could not be reached, fell silent, or died in the middle of its answer."""
    CLIENT_GONE = "client-gone"
    """The client left before the end."""


@dataclass(slots=True, kw_only=True)
class Ended:
    """One exchange that is over, however it ended. Never changed once it is made."""

    decision_id: str | None
    """The picker's name of the request; None when no picker sent it."""
    outcome: Outcome
    status: int
    """Status that the client saw; 0 when it left before there was one."""
    usage: Usage = field(default_factory=Usage)
    usage_unknown: Unknown | None = Unknown.ABSENT
    """Why `usage` is empty; None when it is not."""
    predicted_cached_tokens: int | None = None
    ttft_s: float | None = None
    """From the request's arrival to the first byte of the answer's body."""
    duration_s: float = 0.0


class Journal(Protocol):
    """Who wants to know what passes. Calls return at once and never fail."""

    def first_token(self, decision_id: str, ttft_s: float) -> None:
        """The first byte of a good answer's body left the engine."""

    def ended(self, ended: Ended) -> None:
        """Called exactly once for each exchange that was begun."""

    def engine_refused(self) -> None:
        """The engine's port refuses connections: it is not there."""

    def engine_suspect(self) -> None:
        """The engine broke off an exchange: it may be gone."""


class Relay(Protocol):
    """A running pass-through proxy in front of one engine.

    Bytes of both bodies pass unchanged and as they come. `GET /health` is answered from `ready`.
    """

    async def start(self) -> int:
        """Listen, and return the port. Raises OSError when it cannot."""

    @property
    def leg_port(self) -> int | None:
        """Where legs are taken besides; known once it runs."""

    @property
    def in_flight(self) -> int:
        """Exchanges that have begun and not ended."""

    @property
    def held_bytes(self) -> int:
        """Request bodies that are held at present."""

    @property
    def repeats(self) -> int:
        """Requests that were sent to the engine a second time, on a fresh connection."""

    @property
    def connections(self) -> int:
        """Connections of clients at present, also those whose TLS handshake is not over."""

    @property
    def refused(self) -> int:
        """Connections that found no room."""

    @property
    def engine_connections(self) -> int:
        """Connections to engines and other sidecars at present, spare ones too."""

    @property
    def spare_engine_connections(self) -> int:
        """Those among them that wait for a request."""

    async def close(self) -> None:
        """Stop listening and cut what is still in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """Where to listen; None as host is every interface."""

    host: str | None
    port: int
    leg_port: int | None = None
    tls: ssl.SSLContext | None = None
    """None listens in plain text."""


Readiness = Callable[[], str | None]
"""None when requests are welcome, else the sentence that `/health` answers with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on what one client or engine may hold; see `SidecarSettings` for the meanings."""

    max_body_bytes: int = 64 << 20
    max_header_bytes: int = 32 << 10
    max_headers: int = 128
    max_in_flight: int = 4096
    max_connections: int = 16_384
    """Connections of clients, idle ones and TLS handshakes too. Our own relay keeps to it."""
    handshake_timeout_s: float = 10.0
    """How long a client may take for its TLS handshake. Our own relay keeps to it."""
    head_timeout_s: float = 60.0
    """How long a client may take for the head of a request that it has begun, or for its first."""
    client_keepalive_s: float = 3630.0
    """Idle client connections are dropped later than gateways do it (Envoy: 1 h)."""
    connect_timeout_s: float = 2.0
    idle_timeout_s: float = 900.0
    total_timeout_s: float = 86_400.0
    """The longest that one exchange may take, however much moves."""
    upload_idle_s: float = 60.0
    """How long a client may send nothing of a body that it has begun."""
    engine_keepalive_s: float = 4.0
    """Idle engine connections are dropped sooner than uvicorn does it (5 s)."""
    replay_bytes: int = 256 << 10
    """Request body kept for one repeat on a fresh connection."""
    max_held_bytes: int = 1 << 30
    """Request bodies held at once, all together."""
    flush_s: float = 30.0
    """How long a client whose answer was cut may take to read what was sent before."""
