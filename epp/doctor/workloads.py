"""What pods would run, by the objects that make them: containers, arguments, environment. Pure."""

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from .shape import Object, at, labels, rows, table, text, texts

MAKERS = ("Deployment", "StatefulSet", "DaemonSet", "LeaderWorkerSet")
"""Kinds with a pod template."""
_SHELLS = {"sh", "bash", "dash"}
_REFERENCE = re.compile(r"\$\((\w+)\)")
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_OFF = {"false", "0", "no"}


@dataclass(frozen=True, kw_only=True)
class Container:
    """One container. What no object says of its environment stays as it is written."""

    name: str
    image: str
    raw: Object
    environment: Mapping[str, str]

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Command and arguments, a shell's script taken apart."""
        given = [*texts(self.raw, "command"), *texts(self.raw, "args")]
        words = [_put(_REFERENCE, self.environment, word) for word in given]
        if words and PurePosixPath(words[0]).name in _SHELLS:
            return tuple(self._script(words))
        return tuple(words)

    def _script(self, words: list[str]) -> list[str]:
        script = " ".join(words[1:]).replace("\\\n", " ")
        known = _put(_VARIABLE, self.environment, script)
        try:
            return shlex.split(known)
        except ValueError:
            return known.split()

    @cached_property
    def flags(self) -> dict[str, str]:
        """Values by flag, dashes for underscores; a switch has none."""
        found: dict[str, str] = {}
        for word, after in zip(self.words, (*self.words[1:], ""), strict=False):
            if not word.startswith("--"):
                continue
            flag, equals, value = word.partition("=")
            if not equals and not after.startswith("-"):
                value = after
            head, dot, rest = flag.partition(".")
            found[head.replace("_", "-") + dot + rest] = value
        return found

    def on(self, name: str) -> bool | None:
        """Whether the switch `--name` is set, off (`--no-name`, `=false`), or not said (None)."""
        if f"--no-{name}" in self.flags:
            return False
        said = self.flags.get(f"--{name}")
        return None if said is None else said.lower() not in _OFF

    def config(self, flag: str) -> dict[str, Any] | None:
        """The JSON of a flag, with what `flag.member` says; empty where not said, None where it
        cannot be read."""
        try:
            found = json.loads(self.flags.get(flag) or "{}")
        except ValueError:
            return None
        if not isinstance(found, dict):
            return None
        for name, value in self.flags.items():
            if name.startswith(flag + "."):
                found[name.removeprefix(flag + ".")] = value
        return found


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Pods of one template."""

    kind: str
    namespace: str
    name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    replicas: int
    """As the object says it; 1 where it does not."""
    spec: Object
    containers: tuple[Container, ...]
    """Those that stay: native sidecars, then the others."""

    @property
    def where(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"

    def of(self, container: Container) -> str:
        return f"{self.where}, container {container.name}"

    def container(self, name: str) -> Container | None:
        return next((one for one in self.containers if one.name == name), None)

    def selected(self, namespace: str, by: Mapping[str, str]) -> bool:
        return self.namespace == namespace and by.items() <= self.labels.items()


@dataclass(frozen=True)
class Deployed:
    """All objects that were given."""

    objects: tuple[Object, ...]
    live: bool = False
    """They are a cluster's: what the server fills in is there."""
    unread: frozenset[str] = frozenset()
    """Kinds that were asked for and not told: of these nothing can be said to be missing."""
    _workloads: list[Workload] = field(default_factory=list[Workload])

    @classmethod
    def of(
        cls, objects: Iterable[Object], *, live: bool = False, unread: frozenset[str] = frozenset()
    ) -> "Deployed":
        found = cls(tuple(_flat(objects)), live, unread)
        found._workloads.extend(_made(found))
        found._workloads.extend(_unmade(found))
        return found

    @property
    def workloads(self) -> tuple[Workload, ...]:
        return tuple(self._workloads)

    def kinds(self, *kinds: str) -> Iterator[Object]:
        return (one for one in self.objects if text(one, "kind") in kinds)

    def named(self, kind: str, namespace: str, name: str) -> Object | None:
        for one in self.kinds(kind):
            if namespace_of(one) == namespace and text(one, "metadata", "name") == name:
                return one
        return None

    def selected(self, namespace: str, by: Mapping[str, str]) -> tuple[Workload, ...]:
        return tuple(one for one in self.workloads if by and one.selected(namespace, by))


def mounted(workload: Workload, container: Container, path: str, deployed: Deployed) -> str | None:
    """The text of a file that a container sees; None where no ConfigMap here holds it."""
    for mount in rows(container.raw, "volumeMounts"):
        folder = text(mount, "mountPath") or "/-"
        if not PurePosixPath(path).is_relative_to(folder):
            continue
        below = PurePosixPath(text(mount, "subPath")) / PurePosixPath(path).relative_to(folder)
        for volume in rows(workload.spec, "volumes"):
            if text(volume, "name") != text(mount, "name"):
                continue
            for source in (volume, *rows(volume, "projected", "sources")):
                found = _kept(table(source, "configMap"), str(below), workload, deployed)
                if found is not None:
                    return found
    return None


def _kept(source: Object, file: str, workload: Workload, deployed: Deployed) -> str | None:
    named = deployed.named("ConfigMap", workload.namespace, text(source, "name"))
    items = {text(one, "path"): text(one, "key") for one in rows(source, "items")}
    key = items.get(file, "") if items else file
    return labels(named, "data").get(key)


def namespace_of(found: Object) -> str:
    return text(found, "metadata", "namespace") or "default"


def where(found: Object) -> str:
    return f"{text(found, 'kind')} {namespace_of(found)}/{text(found, 'metadata', 'name')}"


def _flat(objects: Iterable[Object]) -> Iterator[Object]:
    for one in objects:
        if text(one, "kind").endswith("List") and isinstance(at(one, "items"), list):
            yield from _flat(rows(one, "items"))
        else:
            yield one


def _made(deployed: Deployed) -> Iterator[Workload]:
    for one in deployed.kinds(*MAKERS):
        template = table(one, "spec", "template")
        if text(one, "kind") == "LeaderWorkerSet":
            group = table(one, "spec", "leaderWorkerTemplate")
            template = table(group, "leaderTemplate") or table(group, "workerTemplate")
        yield _workload(one, template, deployed)


def _unmade(deployed: Deployed) -> Iterator[Workload]:
    """Pods that no template explains, one for each of their owners."""
    made = deployed.workloads
    owners: set[str] = set()
    for pod in deployed.kinds("Pod"):
        own = labels(pod, "metadata", "labels")
        known = any(
            one.labels and one.namespace == namespace_of(pod) and one.labels.items() <= own.items()
            for one in made
        )
        owner = text(pod, "metadata", "ownerReferences", 0, "uid")
        over = text(pod, "status", "phase") in {"Succeeded", "Failed"}
        if known or over or (owner and owner in owners):
            continue
        owners.add(owner)
        yield _workload(pod, pod, deployed)


def _workload(maker: Object, template: Object, deployed: Deployed) -> Workload:
    namespace = namespace_of(maker)
    spec = table(template, "spec")
    first = [one for one in rows(spec, "initContainers") if text(one, "restartPolicy") == "Always"]
    replicas = at(maker, "spec", "replicas")
    return Workload(
        kind=text(maker, "kind"),
        namespace=namespace,
        name=text(maker, "metadata", "name"),
        labels=labels(template, "metadata", "labels"),
        annotations=labels(template, "metadata", "annotations"),
        replicas=replicas if isinstance(replicas, int) else 1,
        spec=spec,
        containers=tuple(
            Container(
                name=text(raw, "name"),
                image=text(raw, "image"),
                raw=raw,
                environment=_environment(raw, namespace, deployed),
            )
            for raw in (*first, *rows(spec, "containers"))
        ),
    )


def _environment(raw: Object, namespace: str, deployed: Deployed) -> dict[str, str]:
    """By name, as far as objects say it."""
    found: dict[str, str] = {}
    for source in rows(raw, "envFrom"):
        named = deployed.named("ConfigMap", namespace, text(source, "configMapRef", "name"))
        found |= labels(named, "data")
    for one in rows(raw, "env"):
        name = text(one, "name")
        key = table(one, "valueFrom", "configMapKeyRef")
        path = text(one, "valueFrom", "fieldRef", "fieldPath")
        if path:
            found[name] = f"$({path})"
        elif key:
            named = deployed.named("ConfigMap", namespace, text(key, "name"))
            found[name] = text(named, "data", text(key, "key"))
        elif "valueFrom" not in one:
            found[name] = text(one, "value")
    return found


def _put(pattern: re.Pattern[str], known: Mapping[str, str], said: str) -> str:
    return pattern.sub(lambda found: known.get(found[1], found[0]), said)
