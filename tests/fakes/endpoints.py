"""Endpoints for what decides: plain, but for what a test says of them."""

from typing import Any

from epp.framework import Endpoint, EndpointId, Incarnation, PoolId

POOL = PoolId("pool")


def endpoint(name: str | int, *, port: int = 8000, start_ms: int = 1, **fields: Any) -> Endpoint:
    """One of POOL, in the life that began at `start_ms`. A number gives it its name and the end of
    its address: 3 is pod-3 at 10.0.0.3."""
    number, named = (name, f"pod-{name}") if isinstance(name, int) else (1, name)
    ident = EndpointId(POOL, named, port)
    fields.setdefault("address", f"10.0.0.{number}:{port}")
    return Endpoint(id=ident, incarnation=Incarnation(ident, start_ms), **fields)
