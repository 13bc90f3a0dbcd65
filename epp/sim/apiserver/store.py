"""The objects, one global version, and the history that watches read. Pure."""

import copy
import json
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from . import failures, resources, schemas
from .failures import Failure
from .patches import patched
from .resources import Object, Resource

HISTORY = 20_000
"""Changes that a watch can begin at."""
GRACE_S = 30
_LEASE_TIME = 27
"""Length of `2026-01-31T12:00:00.000000Z`: exactly six digits after the point."""

Key = tuple[str, str, str, str]
"""Group, plural, namespace, name."""


@dataclass(frozen=True, slots=True)
class Change:
    """One write."""

    version: int
    key: Key
    before: Object | None
    after: Object | None


class Store:
    """See the module. Every failure is a `Failure`."""

    def __init__(
        self, *, wall: Callable[[], str], chance: Random, judge: schemas.Judge | None = None
    ) -> None:
        """`wall` gives the time as objects have it: `2026-01-31T12:00:00Z`. Without a `judge` the
        CEL rules of a definition let everything pass."""
        self.version = 100
        self.history: deque[Change] = deque(maxlen=HISTORY)
        self.oldest = self.version
        """Watches may begin here or later."""
        self.changed: list[Callable[[Change], None]] = []
        self._wall = wall
        self._chance = chance
        self._judge = judge
        self._objects: dict[Key, Object] = {}
        self._served = {(one.group, one.version, one.plural): one for one in resources.BUILT_IN}

    # What is served

    @property
    def served(self) -> list[Resource]:
        return list(self._served.values())

    def resource(self, group: str, version: str, plural: str) -> Resource | None:
        return self._served.get((group, version, plural))

    # Reading

    def listed(self, of: Resource, namespace: str | None) -> Iterator[Object]:
        """In order of namespace and name."""
        keys = [key for key in self._objects if key[:2] == of.family]
        for key in sorted(keys):
            if namespace is None or key[2] == namespace:
                yield as_version(self._objects[key], of)

    def get(self, of: Resource, namespace: str, name: str) -> Object:
        found = self._objects.get((*of.family, namespace, name))
        if found is None:
            raise failures.not_found(of.plural, name)
        return as_version(found, of)

    def since(self, version: int) -> Iterator[Change]:
        """Raises Failure 410 where that is too long ago."""
        if version < self.oldest:
            raise failures.expired(version, self.oldest)
        return (change for change in list(self.history) if change.version > version)

    # Writing

    def create(self, of: Resource, namespace: str, body: Object) -> Object:
        metadata = dict(body.get("metadata") or {})
        name = metadata.get("name") or self._generated(metadata)
        key = (*of.family, namespace, name)
        if key in self._objects:
            raise failures.exists(of.plural, name)
        metadata |= {
            "name": name,
            "uid": str(uuid.UUID(int=self._chance.getrandbits(128), version=4)),
            "creationTimestamp": self._wall(),
            "generation": 1,
        }
        if of.namespaced:
            metadata["namespace"] = namespace
        made = {**body, "apiVersion": of.api_version, "kind": of.kind, "metadata": metadata}
        if of.status and of.custom:
            made.pop("status", None)
        self._checked(of, made)
        return as_version(self._write(key, made), of)

    def replace(self, of: Resource, namespace: str, name: str, body: Object, part: str) -> Object:
        """`part`: "status", or empty for everything else."""
        key = (*of.family, namespace, name)
        found = self.get(of, namespace, name)
        asked = (body.get("metadata") or {}).get("resourceVersion")
        if asked not in {None, "", found["metadata"]["resourceVersion"]}:
            raise failures.conflict(of.plural, name)
        made = {**body, "apiVersion": of.api_version, "kind": of.kind}
        kept = ("uid", "creationTimestamp", "generation", "deletionTimestamp", "namespace", "name")
        own = {word: found["metadata"][word] for word in kept if word in found["metadata"]}
        made["metadata"] = {**(body.get("metadata") or {}), **own}
        if part == "status":
            made = {**found, "status": body.get("status")}
        elif of.status and "status" in found:
            made["status"] = found["status"]
        elif of.status:
            made.pop("status", None)
        self._checked(of, made)
        if of.custom and made.get("spec") != found.get("spec"):
            made["metadata"]["generation"] = own["generation"] + 1
        before = {**found, "metadata": {**found["metadata"], "resourceVersion": ""}}
        if before == {**made, "metadata": {**made["metadata"], "resourceVersion": ""}}:
            return found
        return as_version(self._write(key, made), of)

    def patch(
        self, of: Resource, namespace: str, name: str, patch: Any, *, kind: str, part: str
    ) -> Object:
        found = self.get(of, namespace, name)
        made = patched(found, patch, kind, custom=of.custom)
        asked = patch.get("metadata", {}) if isinstance(patch, dict) else {}
        if "resourceVersion" not in (asked or {}):
            made["metadata"] = {**made["metadata"]}
            made["metadata"].pop("resourceVersion", None)
        return self.replace(of, namespace, name, made, part)

    def delete(self, of: Resource, namespace: str, name: str, grace_s: int | None) -> Object:
        """A pod on a node is only marked, unless it was before or `grace_s` is 0."""
        key = (*of.family, namespace, name)
        found = self.get(of, namespace, name)
        graceful = of is resources.PODS and found.get("spec", {}).get("nodeName")
        if graceful and grace_s != 0:
            if "deletionTimestamp" in found["metadata"]:
                return found
            grace = GRACE_S if grace_s is None else grace_s
            marked = copy.deepcopy(found)
            marked["metadata"] |= {
                "deletionTimestamp": self._wall(),
                "deletionGracePeriodSeconds": grace,
            }
            return as_version(self._write(key, marked), of)
        self._remove(key)
        return found

    def compact(self) -> None:
        """Forget the history: whoever is not up to date gets 410."""
        self.history.clear()
        self.oldest = self.version

    def bump(self, by: int = 1) -> None:
        """Something else in the cluster was written."""
        self.version += by

    def _write(self, key: Key, made: Object) -> Object:
        self.version += 1
        made["metadata"] = {**made["metadata"], "resourceVersion": str(self.version)}
        before = self._objects.get(key)
        self._objects[key] = made
        if key[:2] == resources.CRDS.family:
            for one in resources.of_definition(made):
                self._served[one.group, one.version, one.plural] = one
        self._tell(Change(self.version, key, before, made))
        return made

    def _remove(self, key: Key) -> None:
        gone = self._objects.pop(key)
        if key[:2] == resources.CRDS.family:
            for one in resources.of_definition(gone):
                for other in [each for each in self._objects if each[:2] == one.family]:
                    self._remove(other)
                self._served.pop((one.group, one.version, one.plural), None)
        self.version += 1
        self._tell(Change(self.version, key, gone, None))

    def _tell(self, change: Change) -> None:
        if len(self.history) == HISTORY:
            self.oldest = self.history[0].version
        self.history.append(change)
        for told in self.changed:
            told(change)

    def _generated(self, metadata: Object) -> str:
        prefix = metadata.get("generateName")
        if not prefix:
            raise Failure(422, "Invalid", "name or generateName is required")
        return f"{prefix}{self._chance.getrandbits(25):05x}"[:253]

    def _checked(self, of: Resource, made: Object) -> None:
        """Defaults and refusals of a custom kind; times of a lease."""
        if of.schema:
            schemas.filled(made, of.schema)
            causes = list(schemas.faults(made, of.schema))
            if self._judge is not None and not causes:
                causes = list(schemas.broken_rules(made, of.schema, self._judge))
            if causes:
                raise failures.invalid(of.kind, made["metadata"]["name"], causes)
        if of is resources.LEASES:
            for word in ("acquireTime", "renewTime"):
                when = (made.get("spec") or {}).get(word)
                if when is not None and len(when) != _LEASE_TIME:
                    raise failures.bad(f"parsing time {json.dumps(when)} as a MicroTime")


def as_version(found: Object, of: Resource) -> Object:
    """A stored object as this version of its family shows it."""
    if found["apiVersion"] == of.api_version:
        return found
    return {**found, "apiVersion": of.api_version}
