"""Keep endpoints whose labels match a selector, as Kubernetes means it.

Type: `label-selector-filter`; older name `by-label-selector`.

All conditions must hold; without any, everybody stays.

Parameters:
- `matchLabels` (none): values that labels must have.
- `matchExpressions` (none): conditions with `key`, `operator` and `values`. `In` wants one of the
  values, `NotIn` none of them (an absent label passes), `Exists` and `DoesNotExist` the label
  itself, without values.

```yaml
- type: label-selector-filter
  parameters:
    matchLabels: {hardware: H100}
    matchExpressions:
      - {key: tier, operator: In, values: [gold, silver]}
```
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from epp.framework import Candidates, Request, parameters


@parameters
class Expression:
    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.key:
            raise ValueError("key must name a label")
        if bool(self.values) != (self.operator in {"In", "NotIn"}):
            raise ValueError("In and NotIn take values, Exists and DoesNotExist take none")

    def holds(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSelector:
    match_labels: dict[str, str] = field(default_factory=dict[str, str])
    match_expressions: tuple[Expression, ...] = ()

    def keep(self, _: Request, candidates: Candidates, /) -> list[bool]:
        names = [*self.match_labels, *(one.key for one in self.match_expressions)]
        verdicts: dict[tuple[str | None, ...], bool] = {}
        kept: list[bool] = []
        for labels in candidates.labels:
            values = tuple(map(labels.get, names))  # few differ among many endpoints
            verdict = verdicts.get(values)
            if verdict is None:
                verdict = verdicts[values] = self._matches(labels)
            kept.append(verdict)
        return kept

    def _matches(self, labels: Mapping[str, str]) -> bool:
        if any(labels.get(name) != value for name, value in self.match_labels.items()):
            return False
        return all(expression.holds(labels) for expression in self.match_expressions)
