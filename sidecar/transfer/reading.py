"""Reads the body of a request that other pods are to work for."""

import asyncio
from dataclasses import dataclass

from epp.bodies.sharing import Api
from epp.bodies.spans import Body, NotAnObjectError
from sidecar import bodies
from sidecar.http.client import NearClient
from sidecar.http.exchange import Exchange
from sidecar.http.incoming import Incoming
from sidecar.http.intake import INLINE_BYTES
from sidecar.http.passage import Passage


@dataclass(frozen=True, slots=True)
class Visit:
    """A client's request and the way to answer it."""

    request: Incoming
    exchange: Exchange
    passage: Passage
    near: NearClient | None = None
    """The client, if it takes bytes as they go over the wire."""


async def read(request: Incoming, body: bytes) -> tuple[Api, Body] | str:
    """Its API and where its members stand, or the stable reason why nobody else can work for it."""
    if len(body) > INLINE_BYTES:
        return await asyncio.to_thread(read_at_once, request, body)
    return read_at_once(request, body)


def read_at_once(request: Incoming, body: bytes) -> tuple[Api, Body] | str:
    """The same for a body of `INLINE_BYTES` at most."""
    api = bodies.api_of(request.path)
    if api is None or request.method != "POST":
        return "api"
    if (request.value("content-encoding") or "identity").strip().lower() != "identity":
        return "encoded"
    try:
        return api, Body.read(body)
    except NotAnObjectError as error:
        return error.reason
