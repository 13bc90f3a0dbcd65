"""Things that two would decide at once: how many pods there are, and whose pods they are. Pure."""

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from itertools import combinations
from typing import Any

from .findings import Finding, Level
from .shape import at, labels, rows, text
from .workloads import MAKERS, Deployed, namespace_of, where

_found = partial(Finding, check="owners")
_SCALERS = ("HorizontalPodAutoscaler", "ScaledObject")
"""Kinds that set `replicas` of what they name in `scaleTargetRef`."""


def check_owners(deployed: Deployed) -> Iterator[Finding]:
    """One owner for each number of replicas, and for each pod."""
    scaled: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)
    for one in deployed.kinds(*_SCALERS):
        if not _made_by_another(one):
            kind = text(one, "spec", "scaleTargetRef", "kind") or "Deployment"
            name = text(one, "spec", "scaleTargetRef", "name")
            scaled[namespace_of(one), kind, name].append(where(one))
    for (namespace, kind, name), by in scaled.items():
        place = f"{kind} {namespace}/{name}"
        if len(by) > 1:
            yield _found(
                level=Level.ERROR,
                where=place,
                what=f"its replicas have {len(by)} owners that undo each other: {', '.join(by)}",
                fix="leave one of them",
            )
        target = deployed.named(kind, namespace, name)
        if target is None:
            yield from _nothing(deployed, kind, place, by)
        elif not deployed.live and at(target, "spec", "replicas") is not None:
            yield _found(
                level=Level.WARNING,
                where=place,
                what=f"each apply sets its replicas back, which {by[0]} decides",
                fix="leave spec.replicas out",
            )
    yield from _shared(deployed)


def _made_by_another(scaler: Any) -> bool:
    """KEDA makes an autoscaler for each ScaledObject: one owner, not two."""
    owners = rows(scaler, "metadata", "ownerReferences")
    return any(text(one, "kind") in _SCALERS for one in owners)


def _nothing(deployed: Deployed, kind: str, place: str, by: list[str]) -> Iterator[Finding]:
    if kind in MAKERS and kind not in deployed.unread:
        yield _found(
            level=Level.ERROR,
            where=by[0],
            what=f"it scales {place}, which is not there",
            fix="name what it should scale in scaleTargetRef",
        )


def _shared(deployed: Deployed) -> Iterator[Finding]:
    """Two Deployments whose selectors fit each other's pods count each other's as their own."""
    made = list(deployed.kinds("Deployment", "StatefulSet"))
    for one, other in combinations(made, 2):
        if namespace_of(one) == namespace_of(other) and (_fits(one, other) or _fits(other, one)):
            yield _found(
                level=Level.ERROR,
                where=where(one),
                what=f"it and {where(other)} select the same pods",
                fix="a label of its own in each selector and pod template",
            )


def _fits(selecting: Any, made: Any) -> bool:
    wanted = labels(selecting, "spec", "selector", "matchLabels")
    there = labels(made, "spec", "template", "metadata", "labels")
    return bool(wanted) and wanted.items() <= there.items()
