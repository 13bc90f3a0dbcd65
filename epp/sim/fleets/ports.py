"""Which port belongs to which part of a local fleet, and what to say when one is taken."""

import errno
import random
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from epp.errors import LocalError

HOST = "127.0.0.1"
MAX_ENGINES = 64
"""The default ranges are a hundred apart, and a laptop has no use for more."""
LOWEST_BASE = 1024
SPAN = 700
"""Ports that `shifted_ports` uses above its base."""

_AUTO_LOWEST = 15_000
_EPHEMERAL_FALLBACK = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Every listening port of one fleet, all on loopback."""

    gateway: int
    envoy_admin: int
    grpc: int
    health: int
    metrics: int
    admin: int
    state: int
    redis: int
    sidecars: tuple[int, ...]
    sidecar_metrics: tuple[int, ...]
    engines: tuple[int, ...]
    kv_events: tuple[int, ...]
    kv_replays: tuple[int, ...]
    """Where real engines say KV events again."""
    side_channels: tuple[int, ...]
    """Where other engines ask for KV."""

    def named(self) -> Iterator[tuple[str, int]]:
        """Each port with the words that a person knows it by."""
        yield "the gateway (Envoy)", self.gateway
        yield "Envoy's admin page", self.envoy_admin
        yield "the picker's ext_proc service", self.grpc
        yield "the picker's health service", self.health
        yield "the picker's metrics", self.metrics
        yield "the picker's admin page", self.admin
        yield "the picker's state port", self.state
        yield "Redis", self.redis
        for index, port in enumerate(self.sidecars):
            yield f"sidecar-{index}", port
        for index, port in enumerate(self.sidecar_metrics):
            yield f"the metrics of sidecar-{index}", port
        for index, port in enumerate(self.engines):
            yield f"engine-{index}", port
        for index, port in enumerate(self.kv_events):
            yield f"the KV events of engine-{index}", port
        for index, port in enumerate(self.kv_replays):
            yield f"the replays of engine-{index}", port
        for index, port in enumerate(self.side_channels):
            yield f"the side channel of engine-{index}", port


def _run(first: int, count: int) -> tuple[int, ...]:
    return tuple(range(first, first + count))


def _bounded(engines: int) -> int:
    if not 1 <= engines <= MAX_ENGINES:
        raise LocalError(f"--engines must be between 1 and {MAX_ENGINES} in all, got {engines}")
    return engines


def default_ports(engines: int) -> Ports:
    """The ports that the README names."""
    count = _bounded(engines)
    return Ports(
        gateway=8080,
        envoy_admin=9901,
        grpc=9002,
        health=9003,
        metrics=9090,
        admin=9091,
        state=9004,
        redis=6399,
        sidecars=_run(8100, count),
        sidecar_metrics=_run(8300, count),
        engines=_run(8200, count),
        kv_events=_run(5570, count),
        side_channels=_run(5670, count),
        kv_replays=_run(5770, count),
    )


def shifted_ports(engines: int, base: int) -> Ports:
    """All ports between `base` (the gateway) and `base + SPAN`."""
    count = _bounded(engines)
    highest = 65_535 - SPAN
    if not LOWEST_BASE <= base <= highest:
        raise LocalError(f"--port-base must be between {LOWEST_BASE} and {highest}, got {base}")
    return Ports(
        gateway=base,
        envoy_admin=base + 1,
        grpc=base + 2,
        health=base + 3,
        state=base + 4,
        metrics=base + 5,
        admin=base + 6,
        redis=base + 7,
        sidecars=_run(base + 100, count),
        engines=_run(base + 200, count),
        sidecar_metrics=_run(base + 300, count),
        kv_events=_run(base + 400, count),
        side_channels=_run(base + 500, count),
        kv_replays=_run(base + 600, count),
    )


def auto_ports(engines: int, rng: random.Random) -> Ports:
    """Free ports below the range that the kernel hands to outgoing connections.

    A port of that range could be taken as somebody's source port while a part restarts.
    Raises LocalError when the machine has too few free ports.
    """
    count = _bounded(engines)
    free = free_ports(8 + 6 * count, rng)
    runs = [tuple(free[8 + i * count : 8 + (i + 1) * count]) for i in range(6)]
    return Ports(
        gateway=free[0],
        envoy_admin=free[1],
        grpc=free[2],
        health=free[3],
        metrics=free[4],
        admin=free[5],
        state=free[6],
        redis=free[7],
        sidecars=runs[0],
        sidecar_metrics=runs[1],
        engines=runs[2],
        kv_events=runs[3],
        side_channels=runs[4],
        kv_replays=runs[5],
    )


def free_ports(count: int, rng: random.Random) -> list[int]:
    """`count` different ports on which nobody listens, in random order."""
    candidates = list(range(_AUTO_LOWEST, _lowest_ephemeral()))
    rng.shuffle(candidates)
    found: list[int] = []
    for port in candidates:
        if len(found) == count:
            break
        if is_free(port):
            found.append(port)
    if len(found) < count:
        raise LocalError(f"{count} free ports are needed, only {len(found)} were found")
    return found


def _lowest_ephemeral() -> int:
    try:
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii")
        lowest = int(text.split()[0])
    except (OSError, ValueError, IndexError):
        return _EPHEMERAL_FALLBACK
    return lowest if lowest >= _AUTO_LOWEST + 1000 else _EPHEMERAL_FALLBACK


def is_free(port: int) -> bool:
    """Whether a server could listen on this loopback port just now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def require_free(ports: Ports, *, redis: bool) -> None:
    """Raise LocalError naming every taken port, who wanted it, and the way out."""
    taken = [
        f"port {port} ({wanted_by})"
        for wanted_by, port in ports.named()
        if (redis or wanted_by != "Redis") and not is_free(port)
    ]
    if not taken:
        return
    first = taken[0].split()[1]
    shown = ", ".join(taken[:5]) + (f" and {len(taken) - 5} more" if len(taken) > 5 else "")
    raise LocalError(
        f"{shown}: in use by another program. End it (`ss -ltnp 'sport = :{first}'` shows it), "
        "or move this fleet with --auto-ports or --port-base N"
    )
