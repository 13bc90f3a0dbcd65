"""What clients ask first: which groups, versions and kinds are served."""

from collections.abc import Iterable

from .resources import Object, Resource

_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
VERSION = {"major": "1", "minor": "36", "gitVersion": "v1.36.0", "platform": "linux/amd64"}


def core_versions() -> Object:
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def groups(served: Iterable[Resource]) -> Object:
    """`/apis`."""
    versions: dict[str, list[str]] = {}
    for one in served:
        known = versions.setdefault(one.group, [])
        if one.version not in known:
            known.append(one.version)
    versions.pop("", None)
    return {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [_group(name, known) for name, known in sorted(versions.items())],
    }


def _group(name: str, versions: list[str]) -> Object:
    each = [{"groupVersion": f"{name}/{one}", "version": one} for one in versions]
    return {"name": name, "versions": each, "preferredVersion": each[0]}


def kinds(served: Iterable[Resource], group: str, version: str) -> Object | None:
    """`/api/v1`, `/apis/<group>/<version>`; None where nothing is served there."""
    listed: list[Object] = []
    for one in served:
        if (one.group, one.version) != (group, version):
            continue
        entry: Object = {
            "name": one.plural,
            "singularName": one.kind.lower(),
            "namespaced": one.namespaced,
            "kind": one.kind,
            "verbs": _VERBS,
        }
        short = {"shortNames": list(one.short_names)} if one.short_names else {}
        listed.append({**entry, **short})
        if one.status:
            verbs = ["get", "patch", "update"]
            listed.append({**entry, "name": f"{one.plural}/status", "verbs": verbs})
    if not listed:
        return None
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{version}" if group else version,
        "resources": listed,
    }


def open_api(served: Iterable[Resource]) -> Object:
    """`/openapi/v3`: where each group and version is described."""
    roots = {_root(one) for one in served}
    return {"paths": {root: {"serverRelativeURL": f"/openapi/v3/{root}"} for root in sorted(roots)}}


def described(served: Iterable[Resource], root: str) -> Object | None:
    """One of them, as far as clients look: that writes may be validated, and by which parameter."""
    paths: Object = {}
    for one in served:
        if _root(one) == root:
            kind = {"group": one.group, "version": one.version, "kind": one.kind}
            parameters = [{"name": name, "in": "query"} for name in ("fieldValidation", "dryRun")]
            patch = {"x-kubernetes-group-version-kind": kind, "parameters": parameters}
            space = "namespaces/{namespace}/" if one.namespaced else ""
            paths[f"/{root}/{space}{one.plural}/{{name}}"] = {"patch": patch}
    if not paths:
        return None
    return {"openapi": "3.0.0", "info": {"title": root, "version": "1"}, "paths": paths}


def _root(one: Resource) -> str:
    return f"apis/{one.group}/{one.version}" if one.group else f"api/{one.version}"
