"""Endpoints from a watched YAML or JSON file, for pools without Kubernetes.

`epp.config.endpoints_file` says what the file holds. A bad file never replaces a good list. The
watch looks at the path again and again, so it follows edits, renames and the symlink swaps of a
mounted ConfigMap alike.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from epp.config.endpoints_file import Entries, parse_entries
from epp.config.located import MAX_BYTES
from epp.errors import ConfigError
from epp.framework import EndpointId, PoolId, Role
from epp.state.endpoints import Member

ROLE_LABEL = "llm-d.ai/role"

Warn = Callable[[str], None]


def load_endpoints(path: Path | str, pool: PoolId, *, warn: Warn = lambda _: None) -> list[Member]:
    """Read the file once. Raises ConfigError; `warn` gets sentences about what was let pass."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror or error}") from error
    return parse_endpoints(text, str(path), pool, warn=warn)


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
    A change is read once it has stood still for `settle_s`, so that half a file is not read.
    """
    seen: object = None
    given: list[Member] | None = None
    while True:
        mark = await asyncio.to_thread(_signature, path)
        if mark != seen:
            await asyncio.sleep(settle_s)
            if mark != await asyncio.to_thread(_signature, path):
                continue
            seen = mark
            try:
                members = await asyncio.to_thread(load_endpoints, path, pool, warn=warn)
            except ConfigError as error:
                on_error(error)
            else:
                if members != given:
                    given = members
                    yield members
        await asyncio.sleep(interval_s)


def _signature(path: Path | str) -> tuple[int, ...]:
    """Changes whenever the file behind the path does; empty when there is none."""
    try:
        stat = os.stat(path)
    except OSError:
        return ()
    return (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


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
    )
