"""The numbers of a picker's process, whatever pools it serves, as Prometheus metrics."""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from .catalogue import BY_NAME
from .families import tally


class StreamNumbers(Protocol):
    """What the transport counts; see `epp.request.transport.grpc.StreamCounts`."""

    started: int
    live: int
    routed: int
    late: int
    backstops: int
    faults: int
    aborted: dict[str, int]


class OffloadNumbers(Protocol):
    pending: int
    refused: int


class CertificateNumbers(Protocol):
    """What became of changed files; see `epp.request.transport.certificate`."""

    taken: int
    refused: int


class PoolsNumbers(Protocol):
    """Requests for pools that are not served; see `epp.request.pools.Pools`."""

    unknown: int


class SpanNumbers(Protocol):
    """What was told of traces; see `epp.tracing.queue.SpanQueue`."""

    sent: int
    lost: int

    def __len__(self) -> int: ...


class ProcessMetrics(Collector):
    """Belongs to one event loop. Rooms that are absent leave their metrics absent."""

    def __init__(self, *, version: str) -> None:
        self.registry = CollectorRegistry()
        self.streams: StreamNumbers | None = None
        self.offload: OffloadNumbers | None = None
        self.certificate: CertificateNumbers | None = None
        self.pools: PoolsNumbers | None = None
        self.spans: SpanNumbers | None = None
        self._version = version
        self._copied: list[Metric] = []
        self.registry.register(self)

    def time_streams(self) -> Callable[[float], None]:
        """Begin to expose how long streams were open; gives what is told the seconds of each."""
        family = BY_NAME["llm_d_epp_extproc_stream_duration_seconds"]
        return Histogram(
            family.name, family.help, buckets=family.buckets, registry=self.registry
        ).observe

    def refresh(self) -> None:
        """Copy what is counted. On the event loop, before `text`."""
        self._copied = list(self._copy())

    def text(self) -> bytes:
        """The page in Prometheus' text format; may run in a thread."""
        return generate_latest(self.registry)

    def collect(self) -> Iterable[Metric]:
        return self._copied

    def _copy(self) -> Iterator[Metric]:
        yield BY_NAME["llm_d_epp_info"].of([((self._version,), 1)])
        if self.streams is not None:
            yield from _streams(self.streams)
        if self.offload is not None:
            yield BY_NAME["epp_offload_pending"].of([((), self.offload.pending)])
            yield BY_NAME["epp_offload_refused_total"].of([((), self.offload.refused)])
        if self.certificate is not None:
            changes = {"taken": self.certificate.taken, "refused": self.certificate.refused}
            yield BY_NAME["epp_certificate_changes_total"].of(tally(changes))
        if self.pools is not None:
            yield BY_NAME["epp_unknown_pool_total"].of([((), self.pools.unknown)])
        if self.spans is not None:
            yield BY_NAME["epp_spans_total"].of(
                tally({"sent": self.spans.sent, "lost": self.spans.lost})
            )
            yield BY_NAME["epp_spans_waiting"].of([((), len(self.spans))])


def _streams(streams: StreamNumbers) -> Iterator[Metric]:
    aborted = sum(streams.aborted.values())
    ended = streams.started - streams.live - aborted
    codes = [(("OK",), float(ended)), *tally(streams.aborted)]
    yield BY_NAME["llm_d_epp_extproc_streams_inflight"].of([((), streams.live)])
    yield BY_NAME["llm_d_epp_extproc_streams_total"].of(codes)
    events = {
        "started": streams.started,
        "routed": streams.routed,
        "late": streams.late,
        "backstop": streams.backstops,
        "fault": streams.faults,
    }
    yield BY_NAME["epp_stream_events_total"].of(tally(events))
