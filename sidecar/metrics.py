"""Every metric of the sidecar. No label carries anything that a client chose."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from .transfer.metrics import HandoffMetrics

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """The metrics of one sidecar, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.handoff = HandoffMetrics(self.registry)
        self.requests = self._counter(
            "requests", "Exchanges that ended, by outcome: ok, engine-error, engine-gone, "
            "client-gone.", "outcome",
        )  # fmt: skip
        self.in_flight = self._gauge("in_flight", "Exchanges that have begun and not ended.")
        self.held_bytes = self._gauge("held_bytes", "Request bodies held at present, in bytes.")
        self.pool_members = self._gauge(
            "pool_members", "Members in the endpoints file: who may prefill for us."
        )
        self.repeats = self._gauge(
            "repeated_requests", "Requests sent a second time because a reused connection to the "
            "engine turned out dead.",
        )  # fmt: skip
        self.ttft = self._histogram(
            "time_to_first_token_seconds", "From a request's arrival to the first byte of its "
            "answer's body; good answers only.",
        )  # fmt: skip
        self.duration = self._histogram(
            "request_duration_seconds", "From a request's arrival to its end; good answers only."
        )
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens, as usage says.")
        self.cached_tokens = self._counter(
            "cached_tokens", "Prompt tokens that the engine found in its cache, as usage says."
        )
        self.completion_tokens = self._counter("completion_tokens", "Tokens generated, by usage.")
        self.predicted_cached_tokens = self._counter(
            "predicted_cached_tokens", "Cached tokens that the picker expected, of requests whose "
            "usage says what was cached.",
        )  # fmt: skip
        self.usage_unknown = self._counter(
            "usage_unknown", "Good answers of unknown usage: absent, compressed, too-large, "
            "opaque.", "why",
        )  # fmt: skip

        self.engine_ready = self._gauge("engine_ready", "1 while the engine takes requests.")
        self.engine_lives = self._counter("engine_lives", "Starts of the engine that were seen.")
        self.probe_failures = self._counter(
            "engine_probe_failures", "Health checks and scrapes that failed: health, metrics.",
            "probe",
        )  # fmt: skip

        self.event_frames = self._gauge("kv_event_frames", "KV event messages taken.")
        self.event_gaps = self._gauge("kv_event_gaps", "Jumps in the engine's event sequence.")
        self.event_restarts = self._gauge("kv_event_restarts", "Event sequences that began anew.")
        self.event_damaged = self._gauge("kv_event_damaged", "Messages that could not be read.")
        self.blocks = self._gauge("kv_blocks", "Engine blocks that the mirror holds.")
        self.orphans = self._gauge("kv_orphan_blocks", "Blocks of unknown parents, not credited.")

        self.records = self._counter("records", "Records in the log.")
        self.claims = self._counter("claims", "Claims of a life of the engine.")
        self.fenced = self._counter("fenced", "Times that another writer took over.")
        self.store_failures = self._counter("store_failures", "Claims and appends that failed.")
        self.resets = self._gauge("full_states", "Full states that were begun.")
        self.dropped_reports = self._gauge(
            "dropped_reports", "First tokens and ends of requests lost while the log was away."
        )
        self.connected = self._gauge("publishing", "1 while this sidecar's claim stands.")
        self.task_failures = self._counter(
            "task_failures", "Background tasks that failed and were started again.", "task"
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"epp_sidecar_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"epp_sidecar_{name}", text, registry=self.registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(f"epp_sidecar_{name}", text, buckets=_SECONDS, registry=self.registry)
