"""What answers take and cost, as metrics: the reference's names, labels and buckets.

Picker and sidecar measure alike: the picker where answers pass through it, the sidecar everywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from epp.bodies.usage import Usage
from epp.distribution import Distribution, Distributions, Level, Levels

LABELS = ("model_name", "target_model_name", "fairness_id", "priority")

_LONG_S = (
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30,
    45, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600,
)  # fmt: skip
_TTFT_S = _LONG_S[: _LONG_S.index(120) + 1]
_TPOT_S = (
    0.0005, 0.00205, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.3, 0.4, 0.5,
    0.6, 0.8, 1, 2,
)  # fmt: skip
_ITL_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2)
_NTPOT_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_REQUEST_BYTES = tuple(2**power for power in range(6, 31))
_TOKENS = (
    1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_778, 65_536, 131_072,
    262_144, 524_288, 1_048_576,
)  # fmt: skip
"""32 778 is no slip of ours: quantiles must agree with the reference's."""
_ANSWER_BYTES = _TOKENS[: _TOKENS.index(65_536) + 1]
_OUTPUT_TOKENS = _TOKENS[: _TOKENS.index(8192) + 1]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: a histogram, or a gauge where there are no buckets."""

    name: str
    help: str
    buckets: tuple[float, ...] = ()
    labels: tuple[str, ...] = LABELS


RUNNING = Family("llm_d_epp_request_running", "Requests that have begun and not ended.")
TTFT = Family(
    "llm_d_epp_request_ttft_seconds",
    "From a request's arrival to the first byte of its answer's body; of answers in one piece, to "
    "their end.",
    _TTFT_S,
    (*LABELS, "streaming"),
)
TPOT = Family(
    "llm_d_epp_request_streaming_tpot_seconds",
    "Time per output token of a stream after its first: (duration - TTFT) / (output tokens - 1).",
    _TPOT_S,
)
ITL = Family(
    "llm_d_epp_request_streaming_itl_seconds", "Time between two pieces of a stream.", _ITL_S
)
NTPOT = Family(
    "llm_d_epp_request_ntpot_seconds", "A request's duration by its output tokens.", _NTPOT_S
)
DURATION = Family(
    "llm_d_epp_request_duration_seconds", "From a request's arrival to its answer's end.", _LONG_S
)
INPUT = Family("llm_d_epp_request_input_tokens", "Prompt tokens, as usage says.", _TOKENS)
CACHED = Family(
    "llm_d_epp_request_cached_tokens",
    "Prompt tokens that the engine found in its cache, as usage says.",
    _TOKENS,
)
OUTPUT = Family(
    "llm_d_epp_request_output_tokens", "Tokens generated, as usage says.", _OUTPUT_TOKENS
)
REQUEST_SIZE = Family(
    "llm_d_epp_request_size_bytes", "Bodies of requests, in bytes.", _REQUEST_BYTES
)
ANSWER_SIZE = Family("llm_d_epp_response_size_bytes", "Bodies of answers, in bytes.", _ANSWER_BYTES)

FAMILIES = (
    RUNNING, TTFT, TPOT, ITL, NTPOT, DURATION, INPUT, CACHED, OUTPUT, REQUEST_SIZE, ANSWER_SIZE,
)  # fmt: skip
"""Those that answers fill in are of good answers only: whole, with a status below 400."""


class Lane:
    """The metrics of one set of labels, at hand for whoever observes."""

    __slots__ = (
        "answer_size",
        "cached",
        "duration",
        "input",
        "itl",
        "ntpot",
        "output",
        "request_size",
        "running",
        "tpot",
        "ttft",
        "ttft_streaming",
    )

    def __init__(self, metrics: "AnswerMetrics", labels: tuple[str, ...]) -> None:
        self.running = metrics.running(labels)
        self.ttft = metrics.of(TTFT, (*labels, "false"))
        self.ttft_streaming = metrics.of(TTFT, (*labels, "true"))
        self.tpot = metrics.of(TPOT, labels)
        self.itl = metrics.of(ITL, labels)
        self.ntpot = metrics.of(NTPOT, labels)
        self.duration = metrics.of(DURATION, labels)
        self.input = metrics.of(INPUT, labels)
        self.cached = metrics.of(CACHED, labels)
        self.output = metrics.of(OUTPUT, labels)
        self.request_size = metrics.of(REQUEST_SIZE, labels)
        self.answer_size = metrics.of(ANSWER_SIZE, labels)


class AnswerMetrics:
    """The metrics of one process, in the registry that is given."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._running = Levels(RUNNING.name, RUNNING.help, RUNNING.labels, registry=registry)
        self._lanes: dict[tuple[str, ...], Lane] = {}
        self._histograms = {
            family.name: Distributions(
                family.name, family.help, family.labels, bounds=family.buckets, registry=registry
            )
            for family in FAMILIES
            if family.buckets
        }

    def meter(self, labels: Sequence[str], request_bytes: int, began: float) -> "Meter":
        """A request that began at that time. `labels` has a value for each of `LABELS`."""
        key = tuple(labels)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(self, key)
        return Meter(lane, request_bytes, began)

    def running(self, labels: tuple[str, ...]) -> Level:
        return self._running.of(labels)

    def of(self, family: Family, labels: tuple[str, ...]) -> Distribution:
        return self._histograms[family.name].of(labels)


class Meter:
    """Measures one request, running until `end`. All times are of one clock, in seconds."""

    __slots__ = ("_began", "_bytes", "_first", "_gaps", "_lane", "_last", "_over")

    def __init__(self, lane: Lane, request_bytes: int, began: float) -> None:
        self._lane = lane
        self._began = began
        self._first: float | None = None
        self._last = began
        self._bytes = 0
        self._gaps: Distribution | None = None  # None while no stream is known
        self._over = False
        lane.running.value += 1
        lane.request_size.observe(request_bytes)

    def streams(self) -> None:
        """The answer is good so far, and comes as a stream of events."""
        self._gaps = self._lane.itl

    def piece(self, size: int, now: float) -> None:
        """The next bytes of the answer's body."""
        if self._first is None:
            self._first = now
        elif self._gaps is not None:
            self._gaps.observe(now - self._last)
        self._last = now
        self._bytes += size

    def end(self, now: float, usage: Usage, *, good: bool) -> None:
        """The request is over; `good`: with a whole answer. Ends after the first do nothing."""
        if self._over:
            return
        self._over = True
        self._lane.running.value -= 1
        if not good:
            return
        took = now - self._began
        lane, tokens = self._lane, usage.completion_tokens
        lane.duration.observe(took)
        lane.answer_size.observe(self._bytes)
        if usage.prompt_tokens is not None:
            lane.input.observe(usage.prompt_tokens)
        if usage.cached_tokens is not None:
            lane.cached.observe(usage.cached_tokens)
        if tokens is not None:
            lane.output.observe(tokens)
        if tokens:
            lane.ntpot.observe(took / tokens)
        if self._first is None:
            return
        if self._gaps is None:
            lane.ttft.observe(took)
            return
        ttft = self._first - self._began
        lane.ttft_streaming.observe(ttft)
        if tokens is not None and tokens > 1:
            lane.tpot.observe((took - ttft) / (tokens - 1))
