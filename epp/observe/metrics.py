"""The picker's numbers as Prometheus metrics.

Counters of decisions are kept here as they happen. What the other rooms count is read when the
page is asked for: `refresh` copies it on the event loop, and the text is made from that copy in a
thread, so that a scrape neither races with the state path nor holds up requests.
"""

from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from epp.distribution import Distribution, Distributions
from epp.errors import NoEndpoint, Refusal
from epp.framework import Decision, Endpoint, EndpointId, Request, Rung
from epp.state.endpoints import EndpointStatus
from epp.state.pool import PoolState
from epp.state.records import Done

from .answers import AnswerMeters
from .catalogue import BY_NAME
from .families import Sample, label, tally
from .labels import OTHER, LabelSets
from .state_numbers import StateNumbers

Labelled = Tally[tuple[str, ...]]
"""A counter, by its labels."""

MAX_ATTEMPTS = 10_000
"""Combinations of target model and endpoint; later models are `other`."""
MAX_WORDS = 64
"""Reasons for and against splits; later ones are `other`."""

_RUNGS = {rung: rung.name.lower() for rung in Rung}
_REFUSED = ("", "", "default-flow", "0")
"""Labels of a request that was refused: nothing is known of it."""


class TokenNumbers(Protocol):
    """What tokenizing counts; see `epp.request.tokens.Tokens`."""

    counts: Tally[str]

    @property
    def calls(self) -> int: ...
    @property
    def cache_bytes(self) -> int: ...
    @property
    def prefix_bytes(self) -> int: ...
    @property
    def text_bytes(self) -> dict[str, int]: ...
    @property
    def missed(self) -> int: ...
    @property
    def stepped_down(self) -> dict[str, int]: ...


class AttemptNumbers(Protocol):
    forgotten: int

    def __len__(self) -> int: ...


class ModeNumbers(Protocol):
    @property
    def mode(self) -> str: ...
    @property
    def modes(self) -> tuple[str, ...]: ...


class ConfigNumbers(Protocol):
    """What became of a changed configuration; see `epp.control.reload`."""

    taken: int
    refused: int
    current: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Rooms whose numbers are read at each scrape; absent ones leave their metrics absent."""

    pool: PoolState | None = None
    state: StateNumbers = field(default_factory=StateNumbers)
    tokens: TokenNumbers | None = None
    switch: ModeNumbers | None = None
    config: ConfigNumbers | None = None
    objectives: ConfigNumbers | None = None
    attempts: AttemptNumbers | None = None


_DISAGG = "disagg-profile-handler"
_PARTS = {
    (False, False): "decode-only",
    (False, True): "prefill-decode",
    (True, False): "encode-decode",
    (True, True): "encode-prefill-decode",
}
"""By whether others encode, and whether another one prefills."""
"""plugin_name and plugin_type of the reference's part that decides the same."""


class Metrics(Collector):
    """The registry and an observer of decisions. Belongs to one event loop."""

    def __init__(self, *, namespace: str = "", sources: Sources | None = None) -> None:
        """`namespace` of the pool, for the reference's labels."""
        self.registry = CollectorRegistry()
        self.sources = sources or Sources()
        self.meters = AnswerMeters(self.registry)
        self._namespace = namespace
        self._labels = LabelSets()
        self._counted: dict[str, Labelled] = {}
        self._requests = self._labelled("llm_d_epp_request_total")
        self._errors = self._labelled("llm_d_epp_request_error_total")
        self._decisions = self._labelled("epp_decisions_total")
        self._splits = self._labelled("epp_split_decisions_total")
        self._encodes = self._labelled("epp_encode_decisions_total")
        self._disagg = self._labelled("llm_d_epp_disagg_decision_total")
        self._refusals = self._labelled("epp_refusals_total")
        self._failures = self._labelled("epp_step_failures_total")
        self._shadowed = self._labelled("epp_shadow_answers_total")
        self._rewrites = self._labelled("llm_d_epp_model_rewrite_decisions_total")
        self._ignored = self._labelled("epp_ignored_headers_total")
        self._plugins = self._labelled("epp_plugin_failures_total")
        self._elsewhere = _counter("epp_served_elsewhere_total", self.registry)
        self._predicted = _counter("epp_predicted_cached_tokens_total", self.registry)
        self._actual = _counter("epp_actual_cached_tokens_total", self.registry)
        self._error = _histogram("epp_cached_tokens_error_ratio", self.registry)
        self._retries = _counter("epp_gateway_retries_total", self.registry)
        self._words: set[str] = set()
        self._took = _distribution("llm_d_epp_scheduler_e2e_duration_seconds", self.registry)
        self._processing = _distribution(
            "llm_d_epp_request_processing_duration_seconds", self.registry
        )
        self._by_endpoint: Tally[EndpointId] = Tally()
        self._attempts: Tally[tuple[str, EndpointId]] = Tally()
        self._nobody = 0
        self._copied: list[Metric] = []
        self.registry.register(self)

    # Told by the request path

    def decided(self, decision: Decision, request: Request, why: str, took_s: float) -> None:
        labels = self._labels.of(request)
        model, target, *_ = labels
        self._requests[labels] += 1
        self._decisions[_RUNGS[decision.rung], why] += 1
        self._splits[(self._word(decision.split),)] += 1
        if decision.encoding.profile:
            self._encodes[(self._word(decision.encoding.why),)] += 1
        parts = _PARTS[bool(decision.encode), bool(decision.prefill)]
        self._disagg[_DISAGG, _DISAGG, model, parts] += 1
        if request.attempt > 1:
            self._retries.inc()
        if request.rewritten_by:
            self._rewrites[request.rewritten_by, model, target] += 1
        self._took.observe(took_s)
        self._processing.observe(took_s)
        first = decision.chosen[0].id
        self._by_endpoint[first] += 1
        known = (target, first)
        room = known in self._attempts or len(self._attempts) < MAX_ATTEMPTS
        self._attempts[known if room else (OTHER, first)] += 1

    def refused(self, refusal: Refusal) -> None:
        self._refusals[(refusal.reason,)] += 1
        self._errors[*_REFUSED, str(refusal.status)] += 1
        self._nobody += isinstance(refusal, NoEndpoint)

    def failed(self, step: str) -> None:
        self._failures[(step,)] += 1

    def ignored(self, header: str) -> None:
        self._ignored[(header,)] += 1

    def plugin_failed(self, plugin: str, why: str) -> None:
        """A plugin lost its vote. Its name is the configuration's, of which there are few."""
        self._plugins[plugin, why] += 1

    def answered(self, request: Request, status: int, *, as_told: bool) -> None:
        if not as_told:
            self._elsewhere.inc()
        if status >= 400:
            code = str(status) if status < 600 else OTHER
            self._errors[*self._labels.of(request), code] += 1

    def shadowed(self, request: Request, *, agreed: bool | None) -> None:
        outcome = "unknown" if agreed is None else "agreed" if agreed else "differed"
        self._shadowed[(outcome,)] += 1

    def done(self, done: Done, _: Endpoint, predicted_tokens: int) -> None:
        """A hook of `PoolState.on_done`: the sidecar said how a request went."""
        if done.cached_tokens is not None:
            self._predicted.inc(predicted_tokens)
            self._actual.inc(done.cached_tokens)
            most = max(predicted_tokens, done.cached_tokens)
            self._error.observe((predicted_tokens - done.cached_tokens) / most if most else 0.0)

    def _word(self, word: str) -> str:
        """A decider's word, as long as they do not become too many."""
        if word not in self._words and len(self._words) >= MAX_WORDS:
            return OTHER
        self._words.add(word)
        return word

    def _labelled(self, name: str) -> Labelled:
        """A counter with labels: an addition, where prometheus-client's takes a microsecond."""
        counts = self._counted[name] = Tally()
        return counts

    # Read by a scrape

    def refresh(self, now: float) -> None:
        """Copy what the other rooms count. On the event loop, before `text`."""
        self._copied = list(self._copy(now))

    def text(self) -> bytes:
        """The page in Prometheus' text format; may run in a thread."""
        return generate_latest(self.registry)

    def collect(self) -> Iterable[Metric]:
        return self._copied

    def _copy(self, now: float) -> Iterator[Metric]:
        sources = self.sources
        for name, counts in self._counted.items():
            yield _family(name, ((labels, float(count)) for labels, count in counts.items()))
        if sources.pool is not None:
            members = sources.pool.overview(now)
            yield from sources.state.pool(sources.pool, members, now)
            yield from self._members(members)
        yield from sources.state.others(now)
        if sources.tokens is not None:
            yield _family("epp_token_lookups_total", tally(sources.tokens.counts))
            yield _family("epp_token_calls_inflight", [((), sources.tokens.calls)])
            yield _family("epp_token_cache_bytes", [((), sources.tokens.cache_bytes)])
            yield _family("epp_token_prefix_cache_bytes", [((), sources.tokens.prefix_bytes)])
            yield _family("epp_token_text_bytes_total", tally(sources.tokens.text_bytes))
            yield _family("epp_token_blocks_missed_total", [((), sources.tokens.missed)])
            yield _family("epp_token_models_stepped_down", tally(sources.tokens.stepped_down))
        for what, file in (("config", sources.config), ("objectives", sources.objectives)):
            if file is not None:
                changes = {"taken": file.taken, "refused": file.refused}
                yield _family(f"epp_{what}_changes_total", tally(changes))
                yield _family(f"epp_{what}_current", [((), float(file.current))])
        if sources.switch is not None:
            mode = sources.switch.mode
            modes = [((str(name),), float(name == mode)) for name in sources.switch.modes]
            yield _family("epp_mode", modes)
        if sources.attempts is not None:
            yield _family("epp_unanswered_requests", [((), float(len(sources.attempts)))])
            forgotten = float(sources.attempts.forgotten)
            yield _family("epp_unanswered_forgotten_total", [((), forgotten)])

    def _members(self, members: Sequence[EndpointStatus]) -> Iterator[Metric]:
        """One series per member; those of a removed member are gone at once (fault B20)."""
        ids = {status.member.id for status in members}
        for gone in self._by_endpoint.keys() - ids:
            del self._by_endpoint[gone]
        for attempt in [attempt for attempt in self._attempts if attempt[1] not in ids]:
            del self._attempts[attempt]
        decided = [((label(ident),), float(count)) for ident, count in self._by_endpoint.items()]
        yield _family("epp_endpoint_decisions_total", decided)
        yield _family("llm_d_epp_scheduler_attempts_total", self._attempted())

    def _attempted(self) -> Iterator[Sample]:
        for (target, ident), count in self._attempts.items():
            labels = ("success", target, ident.name, self._namespace, str(ident.port))
            yield labels, float(count)
        yield ("failure", "", "", "", ""), float(self._nobody)


def _counter(name: str, registry: CollectorRegistry) -> Counter:
    family = BY_NAME[name]
    return Counter(family.name, family.help, family.labels, registry=registry)


def _histogram(name: str, registry: CollectorRegistry) -> Histogram:
    family = BY_NAME[name]
    return Histogram(family.name, family.help, buckets=family.buckets, registry=registry)


def _distribution(name: str, registry: CollectorRegistry) -> Distribution:
    """A histogram without labels, which costs a third of prometheus-client's."""
    family = BY_NAME[name]
    return Distributions(family.name, family.help, (), bounds=family.buckets, registry=registry).of(
        ()
    )


def _family(name: str, samples: Iterable[Sample]) -> Metric:
    """One metric of the catalogue with its values."""
    return BY_NAME[name].of(samples)
