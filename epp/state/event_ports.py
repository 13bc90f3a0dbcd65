"""Where engines without a sidecar tell what their caches hold, as pod or pool says. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPorts:
    """What one endpoint tells; None: as for all of the pool."""

    events: int | None = None
    """TCP port of the KV events of its pod's first rank; 0: nobody is to follow them."""
    replay: int | None = None
    """TCP port where that says events again; 0: nowhere."""
    topic: str | None = None
    """How the topics begin whose events are its own; empty: all."""
    step: int = 0
    """How far its ports are above those of the first rank, as vLLM counts them."""
    rank: int | None = None
    """Data parallel rank whose events are its own. None: the first that speaks there, no other."""


NOTHING_SAID = EventPorts()


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSource:
    """Where to follow one engine's KV events."""

    events: str
    """ZeroMQ endpoint."""
    replay: str | None
    """The same for what was missed; None: gaps cannot be mended."""
    topic: str
    rank: int | None


def source_of(address: str, said: EventPorts, pool: EventPorts) -> EventSource | None:
    """The source of the endpoint at `address` (`ip:port`); None where it has none, or no port is
    left for it."""
    host = address.rpartition(":")[0]
    events = _port(said.events, pool.events, said.step)
    replay = _port(said.replay, pool.replay, said.step)
    if events is None:
        return None
    return EventSource(
        events=f"tcp://{host}:{events}",
        replay=None if replay is None else f"tcp://{host}:{replay}",
        topic=said.topic if said.topic is not None else pool.topic or "",
        rank=said.rank,
    )


def _port(own: int | None, pool: int | None, step: int) -> int | None:
    first = pool if own is None else own
    return first + step if first and first + step <= 65_535 else None
