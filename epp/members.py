"""Where a replica's members come from: a file, or Kubernetes; and what keeps them."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import structlog

from epp.config.objectives_file import Declared
from epp.config.serve import ServeSettings
from epp.control import files
from epp.control.kube.access import Access, in_cluster
from epp.control.kube.api import Api
from epp.control.kube.cluster import POOL_VERSIONS, Cluster, Scope, Told
from epp.control.kube.kubeconfig import read_kubeconfig
from epp.control.kube.objects import pods_by
from epp.errors import ConfigError
from epp.framework import Discovery
from epp.state.endpoints import Member
from epp.state.pool import PoolState

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class FromFile:
    path: Path
    followed: bool


@dataclass(frozen=True, slots=True)
class FromCluster:
    access: Access
    scope: Scope


def source(
    settings: ServeSettings, found: Discovery | None, where: str, environment: Mapping[str, str]
) -> FromFile | FromCluster:
    """`found`: the file-discovery of the configuration called `where`.

    Raises ConfigError where two of them are named, or none.
    """
    given, asked = settings.endpoints_file, settings.kubeconfig or settings.endpoint_selector
    if found is not None and (given or asked):
        flag = "--endpoints-file" if given else "--kubeconfig and --endpoint-selector"
        raise ConfigError(where, f"the configuration has file-discovery: leave {flag} out")
    if found is not None:
        return FromFile(Path(found.path), found.watch_file)
    if given is not None:
        return FromFile(given, True)
    access = read_kubeconfig(settings.kubeconfig) if settings.kubeconfig else None
    access = access or in_cluster(environment)
    if access is None:
        what = (
            "nobody says which endpoints there are: --endpoints-file, file-discovery in a "
            "configuration, --kubeconfig, or a cluster that we run in"
        )
        raise ConfigError("", what)
    return FromCluster(access, _scope(settings))


def _scope(settings: ServeSettings) -> Scope:
    group, name = settings.pool_group, settings.pool_name
    if group not in POOL_VERSIONS:
        known = ", ".join(POOL_VERSIONS)
        raise ConfigError("", f"--pool-group: an InferencePool is of {known}, got {group!r}")
    pods = None
    if settings.endpoint_selector is not None:
        try:
            pods = pods_by(settings.endpoint_selector, settings.endpoint_target_ports)
        except ValueError as error:
            raise ConfigError(
                "", f"--endpoint-selector, --endpoint-target-ports: {error}"
            ) from None
    return Scope(pool=name, namespace=settings.pool_namespace, group=group, pods=pods)


class Members:
    """Keeps the pool's members. `load` first, then `run`."""

    def __init__(
        self,
        settings: ServeSettings,
        pool: PoolState,
        *,
        declare: Callable[[Declared], None] | None,
        clock: Callable[[], float],
        chance: Random,
    ) -> None:
        """`declare` is told what Kubernetes declares of requests; None: a file says it."""
        self.cluster: Cluster | None = None
        """What watches Kubernetes, while it runs."""
        self._settings = settings
        self._pool = pool
        self._declare = declare
        self._clock = clock
        self._chance = chance
        self._source: FromFile | FromCluster | None = None

    def load(self, found: Discovery | None, where: str) -> None:
        """Find out who says it, and read the file for the first time; Kubernetes may take its time.

        Raises ConfigError.
        """
        self._source = source(self._settings, found, where, os.environ)
        settings = self._settings
        about = {
            "pool": settings.pool_name,
            "namespace": settings.pool_namespace,
            "group": settings.pool_group,
            "replica": settings.pod_name,
        }
        if isinstance(self._source, FromCluster):
            access = self._source.access
            log.info("asking Kubernetes for the pool", at=access.url, by=access.source, **about)
            return
        members = files.load_endpoints(self._source.path, self._pool.pool, warn=_warn_file)
        self._pool.replace(members, self._clock())
        log.info("pool loaded", endpoints=len(members), **about)

    def open(self) -> None:
        """On the event loop, before `run` and before anybody asks for `cluster`."""
        if isinstance(self._source, FromCluster):
            self._api = Api(self._source.access)
            self.cluster = Cluster(
                self._api,
                self._source.scope,
                Told(members=self._take, declared=self._declare),
                clock=self._clock,
                cpu=time.thread_time,
                chance=self._chance,
            )

    async def close(self) -> None:
        if self.cluster is not None:
            await self._api.close()

    async def run(self) -> None:
        """Keep them as the file or Kubernetes says, until it is cancelled; what cannot be read
        keeps the last good list."""
        if self.cluster is not None:
            await self.cluster.run()
        elif isinstance(self._source, FromFile) and self._source.followed:
            await self._follow(self._source.path)

    async def _follow(self, path: Path) -> None:
        watched = files.watch(
            path,
            self._pool.pool,
            on_error=lambda error: log.error("endpoints file ignored", error=str(error)),
            warn=_warn_file,
        )
        async for members in watched:
            self._take(members)

    def _take(self, members: Sequence[Member]) -> None:
        changes = self._pool.replace(members, self._clock())
        if changes:
            log.info(
                "pool changed",
                added=len(changes.added),
                removed=len(changes.removed),
                changed=len(changes.changed),
            )


def _warn_file(sentence: str) -> None:
    log.warning("endpoints file", warning=sentence)
