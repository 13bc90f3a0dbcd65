"""Gauges of one sidecar that are read when its page is asked for."""

import asyncio
from collections.abc import Callable

from epp.state.writing.following import Following
from epp.tracing.queue import SpanQueue

from .engine import EngineWatch
from .guard import Guard
from .metrics import Metrics
from .proxy import Relay
from .state.reporter import Reporter


def of_relay(metrics: Metrics, relay: Relay, guard: Guard, engine: EngineWatch) -> None:
    """What moves at present, and between whom."""
    metrics.in_flight.set_function(lambda: relay.in_flight)
    metrics.connections.set_function(lambda: relay.connections)
    metrics.connections_refused.set_function(lambda: relay.refused)
    metrics.engine_connections.set_function(lambda: relay.engine_connections)
    metrics.spare_engine_connections.set_function(lambda: relay.spare_engine_connections)
    metrics.repeats.set_function(lambda: relay.repeats)
    metrics.held_bytes.set_function(lambda: relay.held_bytes)
    metrics.pool_members.set_function(lambda: len(guard))
    metrics.engine_ready.set_function(lambda: engine.ready)
    metrics.tasks.set_function(lambda: len(asyncio.all_tasks()))


def of_state(
    metrics: Metrics, reporter: Reporter, following: Callable[[], Following | None]
) -> None:
    """What is known of the engine's cache, and what is to be said of it."""
    mirror, outbox = reporter.mirror, reporter.outbox
    counts, sequence = mirror.counts, mirror.sequence

    def damaged() -> int:
        found = following()
        return counts.undecodable + (0 if found is None else found.damaged)

    def refused() -> int:
        blocks = mirror.blocks
        return blocks.overflows + blocks.dropped_orphans if blocks else 0

    metrics.event_frames.set_function(lambda: counts.frames)
    metrics.event_gaps.set_function(lambda: sequence.gaps)
    metrics.event_restarts.set_function(lambda: sequence.restarts)
    metrics.event_damaged.set_function(damaged)
    metrics.blocks.set_function(lambda: len(mirror.blocks or ()))
    metrics.orphans.set_function(lambda: mirror.blocks.orphans if mirror.blocks else 0)
    metrics.waiting_orphans.set_function(lambda: mirror.blocks.waiting if mirror.blocks else 0)
    metrics.blocks_refused.set_function(refused)
    metrics.event_replays.set_function(lambda: sequence.replays)
    metrics.event_replays_failed.set_function(lambda: sequence.failed_replays + sequence.overflows)
    metrics.event_held.set_function(lambda: mirror.held)
    metrics.event_other_ranks.set_function(lambda: counts.other_ranks)
    metrics.dropped_reports.set_function(lambda: outbox.dropped)


def of_spans(metrics: Metrics, spans: SpanQueue) -> None:
    """What is told of traces."""
    metrics.spans_sent.set_function(lambda: spans.sent)
    metrics.spans_lost.set_function(lambda: spans.lost)
    metrics.spans_waiting.set_function(spans.__len__)
