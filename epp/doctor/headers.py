"""Whether gateways take the headers out of clients' requests that steer inside the pool. Pure."""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import yaml

from epp.protocol import DESTINATION, ROUTING_HEADERS

from .findings import Finding, Level
from .pools import pools
from .shape import rows, table, text, texts
from .workloads import Deployed, namespace_of, where

_found = partial(Finding, check="headers")
_MANAGER = "HttpConnectionManager"


def check_headers(deployed: Deployed) -> Iterator[Finding]:
    """Early, before the picker is asked: what a route takes out is gone too late."""
    for gateway in deployed.kinds("Gateway"):
        yield from _stripped(gateway, deployed)
    for config in deployed.kinds("ConfigMap"):
        yield from _envoy(config)
    for route in deployed.kinds("HTTPRoute", "GRPCRoute"):
        yield from _late(route)


def _stripped(gateway: Any, deployed: Deployed) -> Iterator[Finding]:
    removed = {name for one in deployed.objects for name in _removed(one, gateway)}
    missing = [name for name in ROUTING_HEADERS if name not in removed]
    if not missing or not pools(deployed):
        return
    cannot = text(gateway, "spec", "gatewayClassName").startswith("gke-")
    if cannot and _sealed(deployed):
        return
    yield _found(
        level=Level.ERROR if not cannot else Level.WARNING,
        where=where(gateway),
        what="clients' own copies of these headers reach the picker, and the engines while it is "
        f"down: {', '.join(missing)}",
        fix="--handoff-key-file for pickers and sidecars, which then believe sealed lists only"
        if cannot
        else "remove them before any filter, as the overlays in manifests/ do for each gateway",
    )


def _sealed(deployed: Deployed) -> bool:
    sidecars = [one.sidecar for pool in pools(deployed) for one in pool.engines]
    return all(one is not None and "--handoff-key-file" in one.flags for one in sidecars)


def _removed(one: Any, gateway: Any) -> Iterator[str]:
    """What an object takes out of requests to this gateway before any filter."""
    kind = text(one, "kind")
    if kind not in {"EnvoyFilter", "ClientTrafficPolicy", "AgentgatewayPolicy"}:
        return
    if not _meant(one, gateway):
        return
    if kind == "EnvoyFilter":
        for patch in rows(one, "spec", "configPatches"):
            yield from _early(table(patch, "patch", "value", "typed_config"))
    elif kind == "ClientTrafficPolicy":
        yield from map(str.lower, texts(one, "spec", "headers", "earlyRequestHeaders", "remove"))
    elif text(one, "spec", "traffic", "phase") == "PreRouting":
        early = texts(one, "spec", "traffic", "transformation", "request", "remove")
        yield from map(str.lower, early)


def _meant(one: Any, gateway: Any) -> bool:
    targets = rows(one, "spec", "targetRefs") or [table(one, "spec", "targetRef")]
    name = text(gateway, "metadata", "name")
    named = any(
        text(target, "kind") == "Gateway" and text(target, "name") == name for target in targets
    )
    everywhere = text(one, "kind") == "EnvoyFilter" and targets == [{}]
    return everywhere or (named and namespace_of(one) == namespace_of(gateway))


def _early(manager: dict[str, Any]) -> Iterator[str]:
    for extension in rows(manager, "early_header_mutation_extensions"):
        for step in rows(extension, "typed_config", "mutations"):
            yield text(step, "remove").lower()


def _envoy(config: Any) -> Iterator[Finding]:
    """Configurations of a standalone Envoy that ask a picker."""
    for name, said in table(config, "data").items():
        if "ext_proc" not in str(said) or _MANAGER not in str(said):
            continue
        for manager in _managers(_read(str(said))):
            removed = set(_early(manager))
            missing = [each for each in ROUTING_HEADERS if each not in removed]
            if missing:
                yield _found(
                    level=Level.ERROR,
                    where=f"{where(config)}, {name}",
                    what=f"it lets clients say {', '.join(missing)}",
                    fix="early_header_mutation_extensions, as `epp local gateway-config` writes",
                )


def _read(said: str) -> Any:
    try:
        return json.loads(said)
    except ValueError:
        try:
            return yaml.safe_load(said)
        except yaml.YAMLError:
            return None


def _managers(found: Any) -> Iterator[dict[str, Any]]:
    """Every HTTP connection manager that has an ext_proc filter."""
    if isinstance(found, dict):
        if str(found.get("@type", "")).endswith(_MANAGER):
            filters = rows(found, "http_filters")
            if any("ext_proc" in text(one, "typed_config", "@type") for one in filters):
                yield found
        for inner in found.values():
            yield from _managers(inner)
    elif isinstance(found, list):
        for inner in found:
            yield from _managers(inner)


def _late(route: Any) -> Iterator[Finding]:
    """Filters of a route run after the picker: they take out what it says."""
    for rule in rows(route, "spec", "rules"):
        for one in rows(rule, "filters"):
            removed = [each.lower() for each in texts(one, "requestHeaderModifier", "remove")]
            steers = [each for each in removed if each in ROUTING_HEADERS]
            if steers:
                gone = "the destination" if DESTINATION in steers else "what it says"
                yield _found(
                    level=Level.ERROR,
                    where=where(route),
                    what=f"its filter runs after the picker and removes {', '.join(steers)}: "
                    f"{gone} is lost",
                    fix="remove clients' copies at the listener, before any filter",
                )
