"""The state path's numbers: what is known of each endpoint, and of the ways by which it came."""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from prometheus_client.metrics_core import Metric

from epp.state.endpoints import EndpointStatus
from epp.state.pool import PoolState
from epp.state.reservation import NONE

from .catalogue import BY_NAME
from .families import Sample, label, tally


class StoreNumbers(Protocol):
    """See `epp.state.store.Reader`."""

    @property
    def connected(self) -> bool: ...
    @property
    def lag_s(self) -> float | None: ...
    @property
    def happened(self) -> Mapping[str, int]: ...
    @property
    def held(self) -> Mapping[str, int]: ...


class ScrapeNumbers(Protocol):
    """See `epp.state.scrape.Scraper`."""

    counts: Tally[str]

    @property
    def active(self) -> int: ...


class PageNumbers(Protocol):
    """See `epp.state.model_pages.ModelPages`."""

    counts: Tally[str]


class ReplicaNumbers(Protocol):
    """See `epp.state.sharing.Sharing`."""

    counts: Tally[str]

    @property
    def replicas(self) -> int: ...


class ElectedNumbers(Protocol):
    """See `epp.state.leases.Elector`."""

    name: str
    counts: Tally[str]

    @property
    def held(self) -> bool: ...


class PlainNumbers(Protocol):
    """See `epp.state.writing.plain_pool.PlainWriters`."""

    @property
    def elector(self) -> ElectedNumbers: ...
    @property
    def held(self) -> Mapping[str, int]: ...
    @property
    def happened(self) -> Mapping[str, int]: ...


class AlarmNumbers(Protocol):
    """See `epp.observe.watch.Watch`."""

    @property
    def active(self) -> Mapping[str, int]: ...
    def by_endpoint(self) -> Mapping[str, Sequence[str]]: ...


class KindNumbers(Protocol):
    """See `epp.control.kube.reflector.Standing`."""

    synced: bool
    heard_at: float | None
    counts: Tally[str]


class ClusterNumbers(Protocol):
    """See `epp.control.kube.cluster.Cluster`."""

    @property
    def pods(self) -> int: ...
    def standings(self) -> Iterable[tuple[str, KindNumbers]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StateNumbers:
    """Rooms whose numbers are read at each scrape; absent ones leave their metrics absent."""

    store: StoreNumbers | None = None
    scraper: ScrapeNumbers | None = None
    models: PageNumbers | None = None
    sharing: ReplicaNumbers | None = None
    plain: PlainNumbers | None = None
    watch: AlarmNumbers | None = None
    cluster: Callable[[], ClusterNumbers | None] = lambda: None
    """None as long as Kubernetes is not asked."""

    def pool(
        self, pool: PoolState, members: Sequence[EndpointStatus], now: float
    ) -> Iterator[Metric]:
        """Of the pool and of each of its members."""
        yield from _averages(str(pool.pool), [one for one in members if one.ready])
        yield from _each(members)
        ours = pool.reserved()
        reserved = [(label(one.member.id), ours.get(one.incarnation, NONE)) for one in members]
        yield _family(
            "epp_endpoint_reserved_requests",
            [((name,), float(sums.requests)) for name, sums in reserved],
        )
        yield _family(
            "epp_endpoint_reserved_prefill_tokens",
            [((name,), float(sums.prefill_tokens)) for name, sums in reserved],
        )
        speeds = pool.loading.known(now)
        yield _family(
            "epp_tier_load_tokens_per_second", [((tier,), speed) for tier, speed in speeds]
        )
        yield _family("epp_index_blocks", [((), float(sum(one.blocks for one in members)))])
        yield _family("epp_state_events_total", tally(pool.counts))
        yield _family("epp_state_size", tally(pool.sizes))
        yield _family("epp_state_limited_total", tally(pool.limited))

    def others(self, now: float) -> Iterator[Metric]:
        """Of what the state path listens to."""
        if self.store is not None:
            yield _family("epp_store_connected", [((), float(self.store.connected))])
            yield _family("epp_log_lag_seconds", [((), self.store.lag_s)])
            yield _family("epp_store_events_total", tally(self.store.happened))
            yield _family("epp_store_size", tally(self.store.held))
        if self.scraper is not None:
            yield _family("epp_scraped_endpoints", [((), float(self.scraper.active))])
            yield _family("epp_scrapes_total", tally(self.scraper.counts))
        if self.models is not None:
            yield _family("epp_model_pages_total", tally(self.models.counts))
        if self.sharing is not None:
            yield _family("epp_replicas", [((), float(self.sharing.replicas))])
            yield _family("epp_replica_events_total", tally(self.sharing.counts))
        if self.plain is not None:
            yield from _elected(self.plain.elector)
            yield _family("epp_plain_members", tally(self.plain.held))
            yield _family("epp_plain_events_total", tally(self.plain.happened))
        if self.watch is not None:
            yield _family("epp_alarm", tally(self.watch.active))
        cluster = self.cluster()
        if cluster is not None:
            yield from _kube(cluster, now)


def _elected(elector: ElectedNumbers) -> Iterator[Metric]:
    yield _family("epp_lease_held", [((elector.name,), float(elector.held))])
    yield _family(
        "epp_lease_events_total",
        [((elector.name, event), float(count)) for event, count in elector.counts.items()],
    )


def _kube(cluster: ClusterNumbers, now: float) -> Iterator[Metric]:
    kinds = list(cluster.standings())
    yield _family("epp_kube_synced", [((kind,), float(one.synced)) for kind, one in kinds])
    yield _family(
        "epp_kube_heard_age_seconds",
        [((kind,), None if one.heard_at is None else now - one.heard_at) for kind, one in kinds],
    )
    yield _family(
        "epp_kube_events_total",
        [((kind, event), float(n)) for kind, one in kinds for event, n in one.counts.items()],
    )
    yield _family("epp_kube_pods", [((), float(cluster.pods))])


def _averages(name: str, ready: Sequence[EndpointStatus]) -> Iterator[Metric]:
    yield _family("llm_d_epp_ready_endpoints", [((name,), float(len(ready)))])
    loads = [one.endpoint.load for one in ready]
    for metric, known in (
        ("llm_d_epp_average_queue_size", [load.waiting for load in loads]),
        ("llm_d_epp_average_running_requests", [load.running for load in loads]),
        ("llm_d_epp_average_kv_cache_utilization", [load.kv_usage for load in loads]),
    ):
        yield _family(metric, [((name,), _mean(known))])
    queues = [((name, label(one.member.id)), one.endpoint.load.waiting) for one in ready]
    yield _family("llm_d_epp_per_endpoint_queue_size", queues)


def _each(members: Sequence[EndpointStatus]) -> Iterator[Metric]:
    each = [((label(one.member.id),), one) for one in members]
    for name, number in (
        ("epp_endpoint_ready", lambda one: float(one.ready)),
        ("epp_endpoint_rung", lambda one: float(one.rung)),
        ("epp_endpoint_blocks", lambda one: float(one.blocks)),
        ("epp_endpoint_trust", lambda one: one.trust),
        ("epp_endpoint_record_age_seconds", lambda one: one.record_age_s),
        ("epp_endpoint_load_age_seconds", lambda one: one.endpoint.load.age_s),
        ("epp_endpoint_elsewhere_requests", lambda one: float(one.elsewhere)),
        (
            "epp_endpoint_prefill_tokens_per_second",
            lambda one: one.endpoint.speeds.prefill_tokens_per_s,
        ),
        ("epp_endpoint_decode_step_seconds", lambda one: one.endpoint.speeds.decode_s_per_token),
    ):
        yield _family(name, ((labels, number(one)) for labels, one in each))


def _mean(numbers: Iterable[float | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return sum(known) / len(known) if known else None


def _family(name: str, samples: Iterable[Sample]) -> Metric:
    return BY_NAME[name].of(samples)
