"""InferenceObjectives and InferenceModelRewrites of one pool, as the API server has them. Pure.

Both kinds have a newer API group and an older one. Where the newer group is installed, it counts.
"""

from collections.abc import Iterable
from typing import TypeVar

import msgspec
from pydantic import ValidationError

from epp.config.objectives_file import Declared, ModelRewrite, Objective

from .objects import Held, Meta

GROUPS = ("llm-d.ai", "inference.networking.x-k8s.io")
"""The newer one first."""
VERSION = "v1alpha2"
OBJECTIVES, REWRITES = "inferenceobjectives", "inferencemodelrewrites"

Declaration = Objective | ModelRewrite
_D = TypeVar("_D", Objective, ModelRewrite)

_KINDS: dict[str, type[Objective] | type[ModelRewrite]] = {
    OBJECTIVES: Objective,
    REWRITES: ModelRewrite,
}
_KIND_NAMES = {OBJECTIVES: "InferenceObjective", REWRITES: "InferenceModelRewrite"}


class Reading:
    """Reads objects of one plural and group, whose lists do not say what they hold."""

    def __init__(self, plural: str, group: str) -> None:
        self._model = _KINDS[plural]
        self._said = {"kind": _KIND_NAMES[plural], "apiVersion": f"{group}/{VERSION}"}

    def __call__(self, raw: bytes | msgspec.Raw) -> Held[Declaration]:
        """Raises ValueError for an object that cannot be used."""
        found = msgspec.json.decode(raw)
        if not isinstance(found, dict):
            raise ValueError("no object")  # noqa: TRY004 - of the wire, not of a caller
        try:
            value = self._model.model_validate({**found, **self._said})
        except ValidationError as error:
            raise ValueError(str(error)) from None
        meta = msgspec.convert(found.get("metadata"), Meta)
        return Held(meta.key, meta.resource_version, value)


def of_pool(declarations: Iterable[Declaration], pool: str) -> Declared:
    """Those of this pool (or of every pool, where none is named), oldest first, then by name."""
    ours = [
        one for one in declarations if one.spec.poolRef is None or one.spec.poolRef.name == pool
    ]
    ours.sort(key=lambda one: (_created(one), one.metadata.name))
    return Declared(
        tuple(one for one in ours if isinstance(one, Objective)),
        tuple(one for one in ours if isinstance(one, ModelRewrite)),
    )


def _created(one: Declaration) -> float:
    when = one.metadata.creationTimestamp
    return float("inf") if when is None else when.timestamp()
