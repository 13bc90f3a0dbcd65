"""A pool as Kubernetes has it: its members, its objectives, and whether there is such a pool.

The pool's object says by which labels its pods are found and where they listen; without one, flags
say so. While the API server is away everything stays as it was last known.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Generic, TypeVar

import structlog

from epp.config.objectives_file import Declared
from epp.framework import PoolId
from epp.state.endpoints import Member

from .api import Api, Resource
from .declared import GROUPS, OBJECTIVES, REWRITES, VERSION, Declaration, Reading, of_pool
from .membership import Membership
from .objects import Pod, Pool, read_pod, read_pool
from .reflection import Changes, Reflection
from .reflector import Reflector, Standing, Times

POOL_VERSIONS = {"inference.networking.k8s.io": "v1", "inference.networking.x-k8s.io": "v1alpha2"}
"""By API group: the version that is read."""
GAP_S = 0.02
"""Between two changes of the members: a rollout brings many at once."""
MOST_GAP_S = 0.15
MAX_ODD_ROLES = 100
"""Words that are told as no role; later ones are let pass in silence."""

T = TypeVar("T")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What to watch: a pool by its name, or pods by their labels."""

    pool: str
    namespace: str
    group: str = "inference.networking.k8s.io"
    pods: Pool | None = None
    """Selector and ports; None: the InferencePool of this name says them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Who hears of it. None of them may wait."""

    members: Callable[[Sequence[Member]], None]
    declared: Callable[[Declared], None] | None
    """None: a file declares objectives and rewrites."""


class _Kind(Generic[T]):
    """One reflector and how it stands."""

    def __init__(self, reflector: Reflector[T]) -> None:
        self.reflector = reflector
        self.reflection = reflector.reflection
        self.standing = reflector.standing


class Cluster:
    """`run` it. `ready`: there is such a pool, and its pods are known."""

    def __init__(
        self,
        api: Api,
        scope: Scope,
        told: Told,
        *,
        clock: Callable[[], float],
        cpu: Callable[[], float],
        chance: Random,
        times: Times | None = None,
    ) -> None:
        """`cpu`: seconds that this thread has computed, to share it with requests."""
        self._api = api
        self._scope = scope
        self._told = told
        self._clock = clock
        self._cpu = cpu
        self._chance = chance
        self._times = times
        self._membership = Membership(PoolId(scope.pool), odd_role=self._odd_role)
        self._odd_roles: set[str] = set()
        self._pool = scope.pods
        self._reselect = asyncio.Event()
        self._changed = asyncio.Event()
        self._moved = asyncio.Event()
        self._known = False
        """There is a pool, its pods were listed, and all of that was told."""
        self._pods_standing = Standing()
        self._pods_known = False
        self._pools = self._kind(self._pool_resource(), read_pool, self._see_pool)
        self._declarations = [
            self._declaration(plural, group)
            for plural in (OBJECTIVES, REWRITES)
            for group in GROUPS
        ]

    # Read by others

    @property
    def ready(self) -> bool:
        """Requests can be served as far as Kubernetes goes."""
        return self._known

    @property
    def why_not(self) -> str:
        """Why it is not ready, for people."""
        faults = [one.fault for one in (self._pods_standing, self._pools.standing) if one.fault]
        if self._pool is None and self._pools.standing.synced and not faults:
            namespace = self._scope.namespace
            return f"there is no InferencePool {self._scope.pool!r} in namespace {namespace!r}"
        return "; ".join(faults) or "Kubernetes has not answered yet"

    async def until_moved(self) -> None:
        """Until `ready` may be another."""
        await self._moved.wait()
        self._moved.clear()

    def standings(self) -> Iterator[tuple[str, Standing]]:
        """By the plural of the kind, and of an older group by that, too."""
        yield "pods", self._pods_standing
        if self._scope.pods is None:
            yield self._named(self._pools)
        if self._told.declared is not None:
            yield from map(self._named, self._declarations)

    @property
    def pods(self) -> int:
        """Known by the selector, whether or not they take requests."""
        return self._membership.pods

    # Tasks

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._apply())
            tasks.create_task(self._follow_pods())
            if self._scope.pods is None:
                tasks.create_task(self._pools.reflector.run())
            if self._told.declared is not None:
                for one in self._declarations:
                    tasks.create_task(one.reflector.run())

    async def _follow_pods(self) -> None:
        """Watch the pods that the pool selects; another selector is another watch. Until its list
        has come, the pods that the last one found go on serving."""
        while True:
            self._reselect.clear()
            pool = self._pool
            if pool is None:
                await self._reselect.wait()
                continue
            async with asyncio.TaskGroup() as tasks:
                reflector = self._pods(pool.selector)
                watching = tasks.create_task(reflector.run())
                await self._reselect.wait()
                watching.cancel()

    async def _apply(self) -> None:
        """Make the members what is known, in a tenth of the time unless that were too late."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            began = self._cpu()
            self._told.members(self._membership.members())
            self._known = self._pool is not None
            self._moved.set()
            spent = self._cpu() - began
            await asyncio.sleep(min(MOST_GAP_S, max(GAP_S, 9 * spent)))

    # What reflectors tell

    def _see_pool(self, _: Changes[Pool]) -> None:
        """A name has one life at a time; while two are told of, the later one counts."""
        found = list(self._pools.reflection.values.values())
        before, after = self._pool, found[-1] if found else None
        if after == before:
            self._moved.set()
            return
        self._pool = after
        if after is None:
            log.warning("the InferencePool is gone", pool=self._scope.pool)
            self._pods_known = False
            self._membership.restart({})
        else:
            log.info("the InferencePool is", selector=after.selector, ports=after.ports)
            self._membership.listen_at(after.ports)
        if before is None or after is None or before.selector != after.selector:
            self._reselect.set()
        if self._pods_known or after is None:
            self._changed.set()

    def _pods(self, selector: str) -> Reflector[Pod]:
        resource = Resource(
            group="", version="v1", plural="pods", namespace=self._scope.namespace, labels=selector
        )
        reflection = Reflection(read_pod)
        fresh = True

        def see(changes: Changes[Pod]) -> None:
            nonlocal fresh
            if fresh:
                fresh = False
                self._membership.restart(reflection.values)
            else:
                for key, pod in changes.items():
                    self._membership.tell(key, pod)
            self._pods_known = True
            self._changed.set()

        if self._pool is not None:
            self._membership.listen_at(self._pool.ports)
        return self._reflector(resource, reflection, see, standing=self._pods_standing)

    def _see_declarations(self, _: Changes[Declaration]) -> None:
        if self._told.declared is None or not all(
            one.standing.synced for one in self._declarations
        ):
            return
        counted: list[Declaration] = []
        for newer, older in zip(self._declarations[::2], self._declarations[1::2], strict=True):
            chosen = newer if newer.standing.installed else older
            counted += chosen.reflection.values.values()
        self._told.declared(of_pool(counted, self._scope.pool))

    # How they are made

    def _pool_resource(self) -> Resource:
        group = self._scope.group
        return Resource(
            group=group,
            version=POOL_VERSIONS.get(group, "v1"),
            plural="inferencepools",
            namespace=self._scope.namespace,
            name=self._scope.pool,
        )

    def _declaration(self, plural: str, group: str) -> _Kind[Declaration]:
        resource = Resource(
            group=group, version=VERSION, plural=plural, namespace=self._scope.namespace
        )
        read = Reading(plural, group)
        return self._kind(resource, read, self._see_declarations, optional=True)

    def _kind(
        self,
        resource: Resource,
        read: Any,
        see: Callable[[Changes[T]], None],
        *,
        optional: bool = False,
    ) -> _Kind[T]:
        reflection: Reflection[T] = Reflection(read)
        return _Kind(self._reflector(resource, reflection, see, optional=optional))

    def _reflector(
        self,
        resource: Resource,
        reflection: Reflection[T],
        see: Callable[[Changes[T]], None],
        *,
        standing: Standing | None = None,
        optional: bool = False,
    ) -> Reflector[T]:
        return Reflector(
            self._api,
            resource,
            reflection,
            see,
            clock=self._clock,
            chance=self._chance,
            times=self._times,
            standing=standing,
            optional=optional,
        )

    def _named(self, kind: _Kind[Any]) -> tuple[str, Standing]:
        resource = kind.reflector.resource
        older = resource.group == GROUPS[1]
        name = f"{resource.plural}.{resource.group}" if older else resource.plural
        return name, kind.standing

    def _odd_role(self, pod: str, role: str) -> None:
        """Told once for each word, of which there may be many."""
        if role not in self._odd_roles and len(self._odd_roles) < MAX_ODD_ROLES:
            self._odd_roles.add(role)
            log.warning("no role has this name: pods serve whole requests", pod=pod, role=role)
