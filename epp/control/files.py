"""Endpoints from a watched YAML or JSON file, for pools without Kubernetes.

`epp.config.endpoints_file` says what the file holds. A bad file never replaces a good list.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from epp.config.endpoints_file import ROLE_LABEL, Entries, parse_entries
from epp.config.text_file import read_file
from epp.config.watched import changes
from epp.errors import ConfigError
from epp.framework import EndpointId, PoolId, Role
from epp.state.endpoints import Member
from epp.state.event_ports import EventPorts

Warn = Callable[[str], None]


def load_endpoints(path: Path | str, pool: PoolId, *, warn: Warn = lambda _: None) -> list[Member]:
    """Read the file once. Raises ConfigError; `warn` gets sentences about what was let pass."""
    return parse_endpoints(read_file(path), str(path), pool, warn=warn)


def parse_endpoints(
    text: bytes, where: str, pool: PoolId, *, warn: Warn = lambda _: None
) -> list[Member]:
    """Like `load_endpoints`, for text already read; `where` names it in errors."""
    found = parse_entries(text, where)
    return [_member(found, number, pool, warn) for number in range(len(found.entries))]


async def watch(
    path: Path | str,
    pool: PoolId,
    *,
    interval_s: float = 0.5,
    settle_s: float = 0.05,
    on_error: Callable[[ConfigError], None],
    warn: Warn = lambda _: None,
) -> AsyncIterator[list[Member]]:
    """The file's list, and each later one that differs. Looks at it every `interval_s`, for ever.

    A file that is missing or bad keeps the last good list: `on_error` is told once per fault.
    """
    given: list[Member] | None = None
    async for _ in changes(path, interval_s=interval_s, settle_s=settle_s):
        try:
            members = await asyncio.to_thread(load_endpoints, path, pool, warn=warn)
        except ConfigError as error:
            on_error(error)
        else:
            if members != given:
                given = members
                yield members


def _member(found: Entries, number: int, pool: PoolId, warn: Warn) -> Member:
    entry = found.entries[number]
    label = entry.labels.get(ROLE_LABEL, "")
    try:
        role = Role(label)
    except ValueError:
        role = Role.UNLABELLED
        place = found.at(number, "labels", ROLE_LABEL)
        known = ", ".join(filter(None, Role))
        warn(f"{place} no role is called {label!r} (known: {known}); serving whole requests")
    return Member(
        id=EndpointId(pool, entry.identity, entry.port),
        address=f"{entry.host}:{entry.port}",
        role=role,
        labels=entry.labels,
        metrics_url=f"http://{entry.host}:{entry.metricsPort or entry.port}/metrics",
        has_sidecar=entry.sidecar,
        events=EventPorts(
            events=entry.kvEventsPort,
            replay=entry.kvReplayPort,
            topic=entry.kvEventsTopic,
            step=entry.dpRank or 0,
            rank=entry.dpRank,
        ),
    )
