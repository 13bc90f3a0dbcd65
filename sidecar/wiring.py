"""Builds the relay of one sidecar and all that legs of handoffs need, from its settings."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from epp.config.endpoints_file import EndpointEntry
from epp.ids import ids
from epp.seals import SealKeys
from epp.tracing.spans import Tracer

from .connectors import plan_of
from .encoding.metrics import EncodeMetrics
from .encoding.stage import Encoders
from .guard import Guard
from .http.client import Upstream
from .http.measuring import Measuring
from .http.service import Service
from .proxy import Journal, Limits, Listen, Readiness, Relay
from .ranked import Ranked
from .settings import SidecarSettings
from .shells import shell_of, upstream_of
from .transfer.course import Course
from .transfer.door import Door
from .transfer.files import Followed, read_endpoints, read_leg_keys, read_seal_keys
from .transfer.job import Tools
from .transfer.legs import LegKeys
from .transfer.metrics import HandoffMetrics
from .transfer.split import Splitter
from .transfer.targets import Target
from .transfer.warming import Warming
from .trust.breakers import Breakers
from .trust.certificates import Certificates
from .trust.named import Trust
from .trust.pairs import Pairs

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
    plan = plan_of(settings.connector, settings.ports)
    return Door(
        guard=Guard(settings.name),
        plan=plan,
        encodes=settings.ec_connector is not None,
        keys=keys,
        leg_port=settings.leg_port,
    )


def trust_of(settings: SidecarSettings, guard: Guard, metrics: HandoffMetrics) -> Trust:
    """Whose word about other pods is believed. Raises ConfigError."""
    file = settings.handoff_key_file
    keys = None if file is None else read_seal_keys(file)
    return Trust(guard=guard, pool=settings.pool, metrics=metrics, keys=keys)


def followed(
    settings: SidecarSettings, door: Door, trust: Trust, own_port: int
) -> "dict[str, Followed[Any]]":
    """Keys and members that change while the sidecar runs, by the names of their tasks."""
    found: dict[str, Followed[Any]] = {}

    def take_legs(keys: LegKeys) -> None:
        door.keys = keys

    def take_seals(keys: SealKeys) -> None:
        trust.keys = keys

    def take_members(entries: tuple[EndpointEntry, ...]) -> None:
        door.guard.replace(entries, own_port)

    files = (
        ("members", settings.endpoints_file, read_endpoints, take_members),
        ("leg-keys", settings.leg_key_file, read_leg_keys, take_legs),
        ("seal-keys", settings.handoff_key_file, read_seal_keys, take_seals),
    )
    for name, path, read, take in files:
        if path is not None:
            found[name] = Followed(paths=(path,), read=partial(read, path), take=take)
    return found


def relay_of(
    settings: SidecarSettings,
    door: Door,
    trust: Trust,
    certificates: Certificates,
    *,
    journal: Journal,
    refusing: Readiness,
    metrics: HandoffMetrics,
    encoding: EncodeMetrics,
    measuring: Measuring,
    tracer: Tracer,
    clocks: Clocks,
) -> tuple[Relay, Warming | None]:
    """The relay, and what meets prefill pods beforehand where that is asked for."""
    limits = limits_of(settings)
    upstream: Upstream = upstream_of(
        settings.relay, settings.engine_url, limits, certificates.outward
    )
    if settings.header_rank is not None:
        upstream = Ranked(upstream, settings.header_rank)
    new_id = ids("leg-")  # unique in the pool
    breakers = Breakers(
        failures=settings.breaker_failures,
        pause_s=settings.breaker_pause_s,
        max_pause_s=settings.breaker_max_pause_s,
    )
    metrics.breakers_open.set_function(lambda: breakers.open)
    metrics.breakers_opened.set_function(lambda: breakers.opened)
    metrics.breaker_hosts.set_function(lambda: len(breakers))
    pairs = None
    if settings.compare_pairs:
        page = settings.engine_names.page
        pairs = Pairs(upstream=upstream, page=page, clock=clocks.monotonic_s)
        metrics.pairs_known.set_function(pairs.__len__)
    warming = None
    if settings.warm_pairs:
        warming = Warming(
            door=door,
            plan=door.plan,
            upstream=upstream,
            pairs=pairs,
            metrics=metrics,
            ready=lambda: refusing() is None,
            clock=clocks.monotonic_s,
            wall_s=clocks.wall_s,
            new_id=new_id,
        )
        metrics.pairs_warm.set_function(warming.__len__)

    def forget(target: Target) -> None:
        for known in (pairs, warming):
            if known is not None:
                known.forget(target)

    tools = Tools(
        upstream=upstream,
        plan=door.plan,
        limits=limits,
        clock=clocks.monotonic_s,
        tracer=tracer,
        breakers=breakers,
        pairs=pairs,
        forget=forget,
    )
    splitter = Splitter(
        door=door,
        tools=tools,
        policy=settings.handoff_policy,
        journal=journal,
        metrics=metrics,
        refusing=refusing,
        wall_s=clocks.wall_s,
        new_id=new_id,
    )
    encoders = None
    if settings.ec_connector is not None:
        encoders = Encoders(
            door=door,
            upstream=upstream,
            policy=settings.encode_policy,
            metrics=encoding,
            clock=clocks.monotonic_s,
            wall_s=clocks.wall_s,
            new_id=new_id,
            breakers=breakers,
        )
    service = Service(
        upstream=upstream,
        door=door,
        course=Course(
            trust=trust,
            splitter=splitter,
            encoders=encoders,
            metrics=encoding,
            wall_s=clocks.wall_s,
        ),
        metrics=metrics,
        measuring=measuring,
        journal=journal,
        refusing=refusing,
        limits=limits,
        clock=clocks.monotonic_s,
        wall_s=clocks.wall_s,
    )
    server = certificates.server
    listen = Listen(
        host=settings.host,
        port=settings.port,
        leg_port=settings.leg_port,
        tls=None if server is None else server.context,
    )
    return shell_of(settings.relay, listen, service), warming


def say_whether_legs_are_on(settings: SidecarSettings, door: Door, trust: Trust) -> None:
    """Once at the start, so that nobody wonders why all is computed here."""
    if door.off is not None:
        log.info("handoff is off: no leg key and no leg port; nothing is prefilled elsewhere")
    elif settings.endpoints_file is None and trust.keys is None:
        log.warning(
            "handoff is off: neither the pickers' key nor an endpoints file says who is a member"
        )
    else:
        log.info("handoff is on", proof="key" if door.keys is not None else "leg port")
