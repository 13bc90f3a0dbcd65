"""Requests with an id of the client's, as a gateway sends them to a desk, once or several times."""

from typing import Any

from epp import protocol
from epp.request.exchange import Route

from .desk import Desk, ask

TOKENS = list(range(640))


def named(name: str, **more: str) -> dict[str, str]:
    return {protocol.REQUEST_ID: name, **more}


async def sent(desk: Desk, name: str = "one", body: Any = None, **more: str) -> Route:
    return await desk.route(body or ask(TOKENS), headers=named(name, **more))


def first_token_ms(desk: Desk) -> float | None:
    limit_s = desk.witness.decisions[-1][1].slo_ttft_s
    return None if limit_s is None else round(limit_s * 1000, 6)


def ended(route: Route, status: int) -> str:
    """Answered whole; gives who was asked first."""
    route.progress.response_headers(status, None)
    route.progress.finished()
    return route.destination or ""
