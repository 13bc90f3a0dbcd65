"""The admin port of `epp serve`: whom it asks for a token, and whom it asks what would happen."""

from collections.abc import Callable
from typing import Protocol

from aiohttp import web

from epp.config.serve import ServeSettings, is_loopback
from epp.framework import Decision, Request
from epp.observe import admin
from epp.observe.explain import Explain
from epp.observe.metrics import Metrics
from epp.observe.probe import Asked, Preview
from epp.request.director import PickDirector
from epp.request.exchange import Arrival
from epp.request.profiles import ModeSwitch
from epp.state.pool import PoolState


class Parts(Protocol):
    """What it shows of a picker."""

    settings: ServeSettings
    admin_token: str | None
    explain: Explain
    pool: PoolState
    switch: ModeSwitch
    metrics: Metrics


def admin_port(
    parts: Parts, director: PickDirector, *, clock: Callable[[], float]
) -> web.Application:
    """Its pages. Off loopback each of them asks for the token, which the settings then require."""
    settings = parts.settings
    return admin.admin_app(
        explain=parts.explain,
        pool=parts.pool,
        switch=parts.switch,
        clock=clock,
        preview=preview_by(director),
        numbers=parts.metrics.sources.state,
        token=page_token(settings, parts.admin_token),
        max_probe_bytes=settings.max_request_bytes,
    )


def page_token(settings: ServeSettings, token: str | None) -> str | None:
    """What the port's pages ask for, given the operator's `token`; None on loopback."""
    return None if is_loopback(settings.admin_host) else token


def preview_by(director: PickDirector) -> Preview:
    """Ask the director as the gateway's stream would."""

    async def preview(asked: Asked) -> tuple[Decision, Request, str]:
        made = await director.preview(
            Arrival(headers=asked.headers, body=asked.body, has_body=True, subset=asked.subset)
        )
        return made.decision, made.understood.request, made.why

    return preview
