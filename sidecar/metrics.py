"""Every metric of the sidecar. No label carries anything that a client chose: models are named as
the engine names them, and otherwise `other`.
"""

from prometheus_client import CollectorRegistry

from epp import answers
from epp.answers import AnswerMetrics
from epp.state.writing.publisher import Wrote

from .declared import Declared, Row
from .encoding.metrics import EncodeMetrics
from .transfer.metrics import HandoffMetrics

_HEAD = """\
# Metrics of the sidecar

Exposed on its metrics port (9092, `/metrics`). Generated from the code that declares them; a test
keeps both equal. Names under `llm_d_epp_` are the reference's, whose picker measures them itself;
here the sidecar does, which sees every answer. `model_name` and `target_model_name` are the
engine's own name of the model or adapter, or `other`; `fairness_id` and `priority` are empty, for
only the picker knows them. Histograms of answers are of good ones: whole, with a status below 400.

| name | kind | labels | meaning |
|---|---|---|---|
"""


class Metrics:
    """The metrics of one sidecar, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._declared = declared = Declared(self.registry)
        self.answers = AnswerMetrics(self.registry)
        self.handoff = HandoffMetrics(declared)
        self.encoding = EncodeMetrics(declared)
        self.requests = declared.counts(
            "requests", "Exchanges that ended, by outcome: ok, engine-error, engine-gone, "
            "client-gone.", "outcome",
        )  # fmt: skip
        self.in_flight = declared.gauge("in_flight", "Exchanges that have begun and not ended.")
        self.held_bytes = declared.gauge("held_bytes", "Request bodies held at present, in bytes.")
        self.pool_members = declared.gauge(
            "pool_members", "Members in the endpoints file: who may prefill for us."
        )
        self.connections = declared.gauge(
            "connections", "Connections of clients at present; of our own relay also those whose "
            "TLS handshake is not over.",
        )  # fmt: skip
        self.connections_refused = declared.gauge(
            "connections_refused", "Connections of clients that were closed at once, for there "
            "were as many as may be.",
        )  # fmt: skip
        self.engine_connections = declared.gauge(
            "engine_connections", "Connections to the engine and to other sidecars at present, "
            "spare ones too; of our own relay.",
        )  # fmt: skip
        self.spare_engine_connections = declared.gauge(
            "spare_engine_connections", "Those among them that wait for a request: 1024 for one "
            "address at most, and for 4 seconds.",
        )  # fmt: skip
        self.repeats = declared.gauge(
            "repeated_requests", "Requests sent a second time because a reused connection to the "
            "engine turned out dead.",
        )  # fmt: skip
        self.predicted_cached_tokens = declared.counter(
            "predicted_cached_tokens", "Cached tokens that the picker expected, of requests whose "
            "usage says what was cached.",
        )  # fmt: skip
        self.usage_unknown = declared.counter(
            "usage_unknown", "Good answers of unknown usage: absent, compressed, too-large, "
            "opaque.", "why",
        )  # fmt: skip

        self.engine_ready = declared.gauge("engine_ready", "1 while the engine takes requests.")
        self.engine_lives = declared.counter("engine_lives", "Starts of the engine that were seen.")
        self.probe_failures = declared.counter(
            "engine_probe_failures", "Health checks and scrapes that failed: health, metrics.",
            "probe",
        )  # fmt: skip

        self.event_frames = declared.gauge("kv_event_frames", "KV event messages taken.")
        self.event_gaps = declared.gauge("kv_event_gaps", "Jumps in the engine's event sequence.")
        self.event_restarts = declared.gauge(
            "kv_event_restarts", "Event sequences that began anew."
        )
        self.event_damaged = declared.gauge("kv_event_damaged", "Messages that could not be read.")
        self.blocks = declared.gauge("kv_blocks", "Engine blocks that the mirror holds.")
        self.orphans = declared.gauge(
            "kv_orphan_blocks", "Blocks of unknown parents, not credited."
        )

        self.waiting_orphans = declared.gauge(
            "kv_waiting_orphan_blocks", "Blocks held back until their parent is known."
        )
        self.blocks_refused = declared.gauge(
            "kv_blocks_overflows", "Times that the mirror was full: of blocks, or of orphans."
        )
        self.event_replays = declared.gauge(
            "kv_event_replays", "Replays of KV events that were asked for."
        )
        self.event_replays_failed = declared.gauge(
            "kv_event_replays_failed", "Replays that broke off, or for which too much waited."
        )
        self.event_held = declared.gauge(
            "kv_event_held", "KV event messages that wait for a replay at present."
        )
        self.event_other_ranks = declared.gauge(
            "kv_event_other_ranks", "Batches of other data parallel ranks, left out."
        )

        self.records = declared.counter("records", "Records in the log.")
        self.claims = declared.counter("claims", "Claims of a life of the engine.")
        self.fenced = declared.counter("fenced", "Times that another writer took over.")
        self.store_failures = declared.counter("store_failures", "Claims and appends that failed.")
        self.snapshots = declared.counter("snapshots", "Snapshots in the log.")
        self.dropped_reports = declared.gauge(
            "dropped_reports", "First tokens and ends of requests lost while the log was away."
        )
        self.spans_sent = declared.gauge("spans_sent", "Spans that the collector of traces took.")
        self.spans_lost = declared.gauge(
            "spans_lost", "Spans that found no room, or did not arrive there."
        )
        self.spans_waiting = declared.gauge(
            "spans_waiting", "Spans that wait to be sent; 2048 at most."
        )
        self.connected = declared.gauge("publishing", "1 while this sidecar's claim stands.")
        self.tasks = declared.gauge(
            "tasks", "Tasks of this process at present; some for each connection and handoff."
        )
        self.task_failures = declared.counter(
            "task_failures", "Background tasks that failed and were started again.", "task"
        )
        self.files_refused = declared.counter(
            "files_refused",
            "Files of keys, members or certificates that could not be used when they were read "
            "again: what they said before holds.",
        )
        self._wrote = {
            Wrote.CLAIM: self.claims,
            Wrote.RECORD: self.records,
            Wrote.SNAPSHOT: self.snapshots,
            Wrote.FENCED: self.fenced,
            Wrote.FAILED: self.store_failures,
        }

    def wrote(self, what: Wrote) -> None:
        """The publisher did something, or something befell it."""
        self._wrote[what].inc()

    def rows(self) -> list[Row]:
        """All of them, as documented."""
        of_answers = [
            Row(one.name, "histogram" if one.buckets else "gauge", one.labels, one.help)
            for one in answers.FAMILIES
        ]
        return of_answers + self._declared.rows


def page() -> str:
    """The text of docs/sidecar-metrics.md."""
    lines = [
        f"| `{row.name}` | {row.kind} | {', '.join(f'`{name}`' for name in row.labels) or '-'} "
        f"| {row.help} |\n"
        for row in Metrics().rows()
    ]
    return _HEAD + "".join(lines)
