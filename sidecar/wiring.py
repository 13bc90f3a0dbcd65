"""Builds the relay of one sidecar and all that legs of handoffs need, from its settings."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from .connectors.nixlv2 import NixlV2
from .guard import Guard
from .http.measuring import Measuring
from .http.service import Service
from .proxy import Journal, Limits, Listen, Readiness, Relay
from .settings import SidecarSettings
from .shells import shell_of, upstream_of
from .transfer.door import Door
from .transfer.files import read_leg_keys
from .transfer.job import Tools
from .transfer.metrics import HandoffMetrics
from .transfer.split import Splitter

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    monotonic_s: Callable[[], float]
    wall_s: Callable[[], float]


def limits_of(settings: SidecarSettings) -> Limits:
    return Limits(
        max_body_bytes=settings.max_body_bytes,
        max_held_bytes=settings.max_held_bytes,
        max_header_bytes=settings.max_header_bytes,
        max_headers=settings.max_headers,
        max_in_flight=settings.max_in_flight,
        connect_timeout_s=settings.connect_timeout_s,
        idle_timeout_s=settings.idle_timeout_s,
        upload_idle_s=settings.upload_idle_s,
        max_connections=settings.max_connections,
        head_timeout_s=settings.head_timeout_s,
        total_timeout_s=settings.total_timeout_s,
    )


def door_of(settings: SidecarSettings) -> Door:
    """How legs prove themselves. Raises ConfigError for a key file that cannot be used."""
    file = settings.leg_key_file
    keys = None if file is None else read_leg_keys(file)
    return Door(guard=Guard(settings.name), keys=keys, leg_port=settings.leg_port)


def relay_of(
    settings: SidecarSettings,
    door: Door,
    *,
    journal: Journal,
    refusing: Readiness,
    metrics: HandoffMetrics,
    measuring: Measuring,
    clocks: Clocks,
) -> Relay:
    limits = limits_of(settings)
    upstream = upstream_of(settings.relay, settings.engine_url, limits)
    splitter = Splitter(
        door=door,
        tools=Tools(upstream=upstream, plan=NixlV2(), limits=limits, clock=clocks.monotonic_s),
        policy=settings.handoff_policy,
        journal=journal,
        metrics=metrics,
        refusing=refusing,
        wall_s=clocks.wall_s,
        new_id=lambda: f"leg-{secrets.token_hex(16)}",
    )
    service = Service(
        upstream=upstream,
        door=door,
        splitter=splitter,
        metrics=metrics,
        measuring=measuring,
        journal=journal,
        refusing=refusing,
        limits=limits,
        clock=clocks.monotonic_s,
        wall_s=clocks.wall_s,
    )
    listen = Listen(host=settings.host, port=settings.port, leg_port=settings.leg_port)
    return shell_of(settings.relay, listen, service)


def say_whether_legs_are_on(settings: SidecarSettings, door: Door) -> None:
    """Once at the start, so that nobody wonders why all is computed here."""
    if door.off is not None:
        log.info("handoff is off: no leg key and no leg port; nothing is prefilled elsewhere")
    elif settings.endpoints_file is None:
        log.warning("handoff is off: without an endpoints file nobody is known as a member")
    else:
        log.info("handoff is on", proof="key" if door.keys is not None else "leg port")
