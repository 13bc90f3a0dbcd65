"""Label values that clients and gateways choose, within bounds (faults G07, G10).

What was let through stays; whatever comes later than the limit, is too long, or cannot be printed
becomes `other`. Nothing that a client sends can make a page unreadable, or longer without end.
"""

from epp.framework import Request

MAX_MODELS = 1000
"""Different values of one label; later ones are `other` (reference's bound)."""
MAX_LABEL_CHARS = 128
OTHER = "other"

Labels = tuple[str, str, str, str]
"""model_name, target_model_name, fairness_id, priority."""


class Bounded:
    """Lets the first values through and calls the rest `other`."""

    def __init__(self, limit: int = MAX_MODELS) -> None:
        self._limit = limit
        self._seen: set[str] = set()

    def of(self, value: str) -> str:
        if value in self._seen:
            return value
        odd = len(value) > MAX_LABEL_CHARS or not value.isprintable()
        if odd or len(self._seen) >= self._limit:
            return OTHER
        self._seen.add(value)
        return value


class LabelSets:
    """The reference's four labels of a request, in little more than `2 * limit` combinations.

    Fairness ids are the first to go: for each of the first `limit` combinations of the other
    labels the model stays told, and only beyond those is it `other` too.
    """

    def __init__(self, limit: int = MAX_MODELS) -> None:
        self._limit = limit
        self._models = Bounded()
        self._targets = Bounded()
        self._ids = Bounded()
        self._whole: set[Labels] = set()
        self._models_only: set[Labels] = set()

    def of(self, request: Request) -> Labels:
        priority = str(request.priority)
        asked = (request.model, request.target_model, request.fairness_id, priority)
        if asked in self._whole:
            return asked
        model, target = self._models.of(request.model), self._targets.of(request.target_model)
        whole = (model, target, self._ids.of(request.fairness_id), priority)
        if self._admit(whole, self._whole):
            return whole
        without_id = (model, target, OTHER, priority)
        if self._admit(without_id, self._models_only):
            return without_id
        return (OTHER, OTHER, OTHER, priority)

    def _admit(self, labels: Labels, seen: set[Labels]) -> bool:
        if labels in seen:
            return True
        if len(seen) >= self._limit:
            return False
        seen.add(labels)
        return True
