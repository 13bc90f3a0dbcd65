"""Whether pickers may read what they watch, and whether they may more than that. Pure."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from epp.control.kube.declared import GROUPS, OBJECTIVES, REWRITES

from .findings import Finding, Level
from .pools import POOLS_FILE, Picker, pickers
from .shape import at, rows, text, texts
from .workloads import Deployed, namespace_of

_found = partial(Finding, check="rbac")
_GROUP = "inference.networking.k8s.io"
_READS = ("list", "watch")
_KINDS = ("Role", "RoleBinding")


def check_rbac(deployed: Deployed) -> Iterator[Finding]:
    """Of every picker that asks Kubernetes."""
    for picker in pickers(deployed):
        if {"--endpoints-file", POOLS_FILE, "--kubeconfig"} & picker.flags.keys():
            continue
        yield from _token(picker, deployed)
        if not deployed.unread & {*_KINDS}:
            rules = list(_rules(picker, deployed))
            yield from _lacking(picker, rules)
            yield from _spare(picker, rules)


def _account(picker: Picker) -> str:
    return text(picker.workload.spec, "serviceAccountName") or "default"


def _token(picker: Picker, deployed: Deployed) -> Iterator[Finding]:
    said = at(picker.workload.spec, "automountServiceAccountToken")
    if said is None:
        account = deployed.named("ServiceAccount", picker.workload.namespace, _account(picker))
        said = at(account, "automountServiceAccountToken")
    if said is False:
        yield _found(
            level=Level.ERROR,
            where=picker.where,
            what="its service account's token is not mounted: it cannot ask the API server",
            fix="automountServiceAccountToken: true in the pod's spec",
        )


def _needed(picker: Picker) -> Iterator[tuple[str, str, Level]]:
    """Group, resource, and how bad it is without."""
    flags = picker.flags
    yield "", "pods", Level.ERROR
    if "--endpoint-selector" not in flags:
        yield flags.get("--pool-group", _GROUP), "inferencepools", Level.ERROR
    if "--objectives-file" not in flags:
        for plural in (OBJECTIVES, REWRITES):
            yield GROUPS[0], plural, Level.WARNING


def _lacking(picker: Picker, rules: list[dict[str, Any]]) -> Iterator[Finding]:
    for group, resource, level in _needed(picker):
        verbs = [verb for verb in _READS if not _allowed(rules, group, resource, verb)]
        if verbs:
            yield _found(
                level=level,
                where=picker.where,
                what=f"its service account {_account(picker)} may not {' and '.join(verbs)} "
                f"{resource} ({group or 'core'}) in namespace {picker.namespace}",
                fix="a Role with these verbs, bound to the account",
            )


def _allowed(rules: list[dict[str, Any]], group: str, resource: str, verb: str) -> bool:
    return any(
        _has(rule, "apiGroups", group)
        and _has(rule, "resources", resource)
        and _has(rule, "verbs", verb)
        and not rule.get("resourceNames")
        for rule in rules
    )


def _has(rule: dict[str, Any], key: str, value: str) -> bool:
    said = texts(rule, key)
    return "*" in said or value in said


def _spare(picker: Picker, rules: list[dict[str, Any]]) -> Iterator[Finding]:
    """A picker writes nothing, and needs no Secret through the API."""
    more = {
        f"{verb} {resource}"
        for rule in rules
        for verb in texts(rule, "verbs")
        for resource in texts(rule, "resources")
        if verb not in {"get", *_READS} or resource in {"secrets", "*"}
    }
    if more:
        yield _found(
            level=Level.WARNING,
            where=picker.where,
            what=f"its service account {_account(picker)} may also {', '.join(sorted(more))}",
            fix="a picker lists and watches, and nothing else: see manifests/base/rbac.yaml",
        )


def _rules(picker: Picker, deployed: Deployed) -> Iterator[dict[str, Any]]:
    for binding in deployed.kinds("RoleBinding", "ClusterRoleBinding"):
        everywhere = text(binding, "kind") == "ClusterRoleBinding"
        if not everywhere and namespace_of(binding) != picker.namespace:
            continue
        if not any(_is(picker, one, binding) for one in rows(binding, "subjects")):
            continue
        kind, name = text(binding, "roleRef", "kind"), text(binding, "roleRef", "name")
        for role in deployed.kinds(kind):
            local = kind == "ClusterRole" or namespace_of(role) == namespace_of(binding)
            if local and text(role, "metadata", "name") == name:
                yield from rows(role, "rules")


def _is(picker: Picker, subject: dict[str, Any], binding: Any) -> bool:
    own = picker.workload.namespace
    if text(subject, "kind") == "Group":
        return text(subject, "name") in {
            "system:authenticated",
            "system:serviceaccounts",
            f"system:serviceaccounts:{own}",
        }
    return (
        text(subject, "kind") == "ServiceAccount"
        and text(subject, "name") == _account(picker)
        and (text(subject, "namespace") or namespace_of(binding)) == own
    )
