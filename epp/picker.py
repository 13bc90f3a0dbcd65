"""The parts of one replica that live as long as its process does, and the tasks that keep them."""

import asyncio
import os
import random
import time
from collections.abc import Callable, Collection
from functools import partial

import structlog

from epp.config.key_file import parse_keys
from epp.config.objectives_file import Declared
from epp.config.salt_key import read_salt_key
from epp.config.serve import LEAST_REFRESH_S, ServeSettings
from epp.config.text_file import read_file
from epp.control import objectives
from epp.control.reload import Reload
from epp.framework import EndpointId, PoolId, Role
from epp.members import Members
from epp.observe.alarm import SplitAlarm
from epp.observe.explain import Explain
from epp.observe.metrics import Metrics, Sources
from epp.observe.state_numbers import StateNumbers
from epp.observe.watch import CHECK_S, Watch
from epp.request.ballot import Ballot
from epp.request.objectives import LiveObjectives, Objectives
from epp.request.plan import feeds
from epp.request.plan.live import Built, LivePlan, unfollowed
from epp.request.plan.source import PlanSource
from epp.request.profiles import ModeSwitch
from epp.request.replica import short_name
from epp.request.sealing import Sealer
from epp.seals import SealKeys
from epp.state.blocks import Naming
from epp.state.endpoints import Endpoints
from epp.state.event_ports import EventPorts
from epp.state.hearing import follow
from epp.state.leases import PLAIN_WRITER, Elector
from epp.state.load import LoadBook, LoadRules
from epp.state.model_pages import Asked, ModelPages
from epp.state.pool import PoolState
from epp.state.prefix.index import PrefixIndex
from epp.state.prefix.predicted import PredictedIndex
from epp.state.rules import PoolRules
from epp.state.scrape import Scraper, ScrapeSettings
from epp.state.sharing import Sharing
from epp.state.store import Stream
from epp.state.writing.plain_pool import PlainWriters
from epp.stores import Place, ways

TICK_S = 0.1
INDEX_BLOCKS = 1_000_000
"""Own blocks of one endpoint: 64 million tokens, beyond any engine's memory."""
PREDICTED_BLOCKS = 500_000
PREDICTED_TTL_S = 300.0

log = structlog.get_logger(__name__)
clock: Callable[[], float] = time.monotonic


class Picker:
    """The parts of one replica that live as long as the process does."""

    def __init__(self, settings: ServeSettings, place: Place | None = None) -> None:
        """`place`: among several workers; None: alone on its ports."""
        self.settings = settings
        self.pool_id = PoolId(settings.pool_name)
        self.pool = PoolState(
            self.pool_id,
            Endpoints(),
            PrefixIndex(INDEX_BLOCKS),
            PredictedIndex(PREDICTED_BLOCKS, PREDICTED_TTL_S),
            LoadBook(LoadRules(stale_s=settings.metrics_staleness_threshold_s)),
            rules=PoolRules(load_tokens_per_s=settings.tier_speeds()),
        )
        self.switch = ModeSwitch(settings.mode)
        self.admin_token = settings.admin_token()
        source = PlanSource.of(settings)
        text = source.read()
        self.live = LivePlan(source.built(text))
        self._discovery = feeds.discovery(self.live.built)
        self.reload: Reload[Built] | None = None
        if settings.config_file is not None:
            self.reload = Reload(
                settings.config_file,
                text=text,
                build=lambda changed: source.built(changed, self.live.built),
                swap=self._swap,
            )
        every_s = feeds.page_interval_s(self.live.built) or settings.refresh_metrics_interval_s
        every_s = max(LEAST_REFRESH_S, every_s)
        self.chance = random.Random()
        self.name = f"{short_name(settings.pod_name)}-{os.urandom(8).hex()}"
        self.ways = ways(
            settings,
            place,
            name=self.name,
            members=lambda: [member.id for member in self.pool.endpoints],
            is_member=lambda endpoint: endpoint in self.pool.endpoints,
            clock=clock,
            chance=self.chance,
        )
        self.naming = naming_of(settings)
        self.plain = self._plain_writers()
        self.scraper = Scraper(
            self.pool if self.plain is None else self.plain,
            settings=ScrapeSettings(interval_s=every_s, timeout_s=min(1.0, 0.8 * every_s)),
            engine_of=feeds.engine_of(self.live.built),
            missed=_warn_page,
        )
        self.model_pages = ModelPages(
            members=lambda: self.pool.endpoints,
            asked=self._models_asked,
            told=self._tell_models,
            clock=clock,
        )
        self.ready = False
        """Whether there is a pool to choose from; see `epp.readiness`."""
        self.explain = Explain(
            wall=lambda: time.time_ns() / 1e9, replica=short_name(settings.pod_name)
        )
        self.alarm = SplitAlarm(has_roles=self._has_roles, clock=clock)
        self.sharing = self._shared()
        self.watch = Watch(self.pool, connected=lambda: self.ways.reader.connected)
        self.metrics = Metrics(
            namespace=settings.pool_namespace,
            sources=Sources(
                state=StateNumbers(
                    store=self.ways.reader,
                    scraper=self.scraper,
                    models=self.model_pages,
                    sharing=self.sharing,
                    plain=self.plain,
                    watch=self.watch,
                    cluster=lambda: self.members.cluster,
                )
            ),
        )
        self.pool.on_done += [self.metrics.done, self.watch.done]
        self.ballot = Ballot(clock=clock, cpu=time.thread_time, failed=self.metrics.plugin_failed)
        self.pool.on_removed.append(self._tell_removed)
        self.objectives = LiveObjectives(self.chance)
        self.members = Members(
            settings,
            self.pool,
            declare=None if settings.objectives_file else self._declared,
            clock=clock,
            chance=self.chance,
        )
        self.objectives_reload = objectives.follow(
            settings.objectives_file, self.pool_id, make=Objectives.of, swap=self.objectives.swap
        )

        self.sealer: Sealer | None = None
        self.seal_reload: Reload[SealKeys] | None = None
        self._read_seal_keys()

    def _read_seal_keys(self) -> None:
        """The key under which sidecars are told of other pods, and what follows its file. Raises
        ConfigError, which shows no key."""
        file, settings = self.settings.handoff_key_file, self.settings
        if file is None:
            return

        def build(text: bytes) -> SealKeys:
            return SealKeys(*parse_keys(text, str(file)))

        text = read_file(file)
        sealer = Sealer(
            settings.pool_name,
            build(text),
            wall_s=lambda: time.time_ns() / 1e9,
            life_s=settings.handoff_life_s,
        )
        self.sealer = sealer
        self.seal_reload = Reload(
            file, text=text, build=build, swap=lambda keys: setattr(sealer, "keys", keys)
        )

    def load_members(self) -> None:
        """Find out who says which endpoints there are; a file is read. Raises ConfigError."""
        self.members.load(self._discovery, self.live.plan.source)

    def _declared(self, declared: Declared) -> None:
        self.objectives.swap(Objectives.of(declared))

    def _swap(self, built: Built) -> None:
        for producer in unfollowed(self.live.built, built):
            log.warning("its settings hold from the next start", producer=producer)
        tell_notes(built)
        self.live.swap(built)

    def someone(self) -> str | None:
        """A ready endpoint, another one each time."""
        ready = self.pool.ready(clock())
        return self.chance.choice(ready).address if ready else None

    def _tell_removed(self, endpoints: Collection[EndpointId]) -> None:
        for one in self.live.built.watchers:
            self.ballot.tell(one.name, partial(one.plugin.removed, endpoints))

    def _models_asked(self) -> Asked | None:
        source = feeds.models_source(self.live.built)
        if source is None:
            return None
        return Asked(source.models_path, source.models_interval_s, self.live.swaps)

    def _tell_models(self, endpoint: EndpointId, models: frozenset[str]) -> None:
        if endpoint in self.pool.endpoints:
            for one in feeds.models_readers(self.live.built):
                self.ballot.tell(one.name, partial(one.plugin.serves, endpoint, models))

    def _has_roles(self) -> bool:
        return any(member.role is not Role.UNLABELLED for member in self.pool.endpoints)

    def _plain_writers(self) -> PlainWriters | None:
        """What writes for engines without a sidecar, where that is not another worker's."""
        writing, settings = self.ways.writing, self.settings
        if writing is None:
            return None
        return PlainWriters(
            self.pool,
            Elector(writing.register(), PLAIN_WRITER, clock=clock, rng=self.chance),
            ports=EventPorts(
                events=settings.kv_events_port,
                replay=settings.kv_replay_port,
                topic=settings.kv_events_topic,
            ),
            naming=self.naming,
            open_writer=writing.open_writer,
            clock=clock,
            wall_ms=lambda: time.time_ns() // 1_000_000,
            rng=self.chance,
        )

    def _shared(self) -> Sharing | None:
        """What other replicas have reserved, where there are others."""
        if self.ways.board is None:
            return None
        return Sharing(
            self.pool,
            self.ways.board,
            self.name,
            clock=clock,
            rng=self.chance,
            counts=self.ways.counts,
        )

    # Tasks; each runs until it is cancelled

    async def follow_log(self, stream: Stream) -> None:
        """Apply what writers append, and read again what is missing."""
        await follow(self.pool, self.ways.reader, stream, clock=clock)

    async def look(self) -> None:
        """Notice what is wrong though no request fails."""
        while True:
            self.watch.check(clock())
            await asyncio.sleep(CHECK_S)

    async def tick(self) -> None:
        while True:
            self.pool.tick(clock(), listening_since=self.ways.reader.listening_since)
            await asyncio.sleep(TICK_S)


def naming_of(settings: ServeSettings) -> Naming:
    """What all of a pool agree on. Raises ConfigError for a key file that cannot be used."""
    file = settings.salt_key_file
    return Naming.of_pool(
        PoolId(settings.pool_name),
        salt_key=None if file is None else read_salt_key(file),
        namespace=settings.cache_namespace,
    )


def tell_notes(built: Built) -> None:
    for note in built.plan.notes:
        log.warning("configuration", note=note)


def _warn_page(endpoint: EndpointId, engine: str, page: str, numbers: tuple[str, ...]) -> None:
    log.warning(
        "numbers that the engine should tell are not on its metrics page",
        endpoint=str(endpoint),
        engine=engine,
        page=page,
        numbers=numbers,
    )
