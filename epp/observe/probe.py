"""`POST /v1/routing/probe`: what would become of a request, without sending or booking it.

The body is the request's own; its path stands in `?path=` or in a header, the endpoints that the
gateway would allow in `?subset=`. Other headers count as the request's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from aiohttp import web

from epp import protocol
from epp.errors import Refusal
from epp.framework import Decision, Request

from .explain import Explain

PATH_HEADER = "x-epp-path"
MAX_BODY_BYTES = 10 * 2**20

_OURS = frozenset(
    (
        *protocol.HOP_BY_HOP_HEADERS,
        *protocol.ROUTING_HEADERS,
        protocol.ADMIN_TOKEN,
        PATH_HEADER,
        "authorization",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
    )
)
"""Headers that speak of the call itself, or that a gateway would have taken out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request that nobody sent. `headers` hold `:path` and `:method`, as from a gateway."""

    headers: Mapping[str, str]
    body: bytes
    subset: tuple[str, ...] | None = None


class Preview(Protocol):
    """See `epp.request.director.PickDirector.preview`."""

    async def __call__(self, asked: Asked) -> tuple[Decision, Request, str]:
        """The decision, the request as it was understood, and why no more was known. Raises
        Refusal."""


async def answer(
    request: web.Request,
    *,
    preview: Preview,
    explain: Explain,
    clock: Callable[[], float],
    max_body_bytes: int,
) -> dict[str, Any]:
    """The page as JSON values. Raises aiohttp's errors for a call that cannot be understood."""
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(text="send application/json\n")
    asked = Asked(
        headers=_headers(request),
        body=await bounded(request, max_body_bytes),
        subset=_subset(request.query.get("subset")),
    )
    started = clock()
    try:
        decision, understood, why = await preview(asked)
    except Refusal as refusal:
        told = {"status": refusal.status, "reason": refusal.reason, "message": str(refusal)}
        return {"would": "refuse", "refusal": told}
    entry = explain.unkept(decision, understood, why, clock() - started)
    return {"would": "route", "decision": entry}


async def bounded(request: web.Request, limit: int) -> bytes:
    """The body, unless it is longer than `limit` bytes."""
    body = bytearray()
    async for piece in request.content.iter_any():
        body += piece
        if len(body) > limit:
            raise web.HTTPRequestEntityTooLarge(max_size=limit, actual_size=len(body))
    return bytes(body)


def _headers(request: web.Request) -> dict[str, str]:
    path: str = request.query.get("path") or request.headers.get(PATH_HEADER) or ""
    if not path.startswith("/"):
        raise web.HTTPBadRequest(
            text=f"say where the request goes: ?path=/v1/chat/completions or {PATH_HEADER}\n"
        )
    headers: dict[str, str] = {":path": path, ":method": "POST", "content-type": "application/json"}
    for spelled, value in request.headers.items():
        name = spelled.lower()
        if name not in _OURS:
            headers[name] = f"{headers[name]},{value}" if name in headers else value
    return headers


def _subset(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    return tuple(entry.strip() for entry in text.split(",") if entry.strip())
