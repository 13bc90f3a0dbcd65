"""Which shell moves the bytes. A shell is loaded when it is chosen: each costs memory."""

# ruff: noqa: PLC0415

from .http.client import Upstream
from .http.service import Service
from .proxy import Limits, Listen, Relay
from .ranked import Ranked
from .settings import Kind
from .trust.tls import PLAIN, Outward


def upstream_of(kind: Kind, engine_url: str, limits: Limits, tls: Outward = PLAIN) -> Upstream:
    """The way to engines that belongs to this kind of relay."""
    if kind == "own":
        from .relay.pool import Engines

        return Engines(engine_url, limits, tls)
    from .reference.upstream import AiohttpUpstream

    return AiohttpUpstream(engine_url, limits, tls)


def shell_of(kind: Kind, listen: Listen, service: Service) -> Relay:
    """The relay around a service whose upstream is of the same kind."""
    if kind == "own":
        from .relay.pool import Engines
        from .relay.server import OwnRelay

        upstream = service.upstream
        engines = upstream.inner if isinstance(upstream, Ranked) else upstream
        assert isinstance(engines, Engines)
        return OwnRelay(listen=listen, service=service, engines=engines)
    from .reference.relay import AiohttpRelay

    return AiohttpRelay(listen=listen, service=service)
