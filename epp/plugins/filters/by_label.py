"""Keep endpoints of which one label has one of several values.

Type: `by-label`; deprecated, `label-selector-filter` says the same and more.

Parameters:
- `label` (required): the label's name.
- `validValues` (none): values to keep.
- `allowsNoLabel` (false): keep endpoints without the label, too. One of the two must be given.

```yaml
- type: by-label
  parameters:
    label: hardware
    validValues: [H100]
```
"""

from dataclasses import dataclass

from epp.framework import Candidates, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class ByLabel:
    label: str
    valid_values: tuple[str, ...] = ()
    allows_no_label: bool = False

    def __post_init__(self) -> None:
        if not self.label:
            raise ValueError("label must name a label")
        if not self.valid_values and not self.allows_no_label:
            raise ValueError("validValues must name one at least, or allowsNoLabel must be true")

    def keep(self, _: Request, candidates: Candidates, /) -> list[bool]:
        return [
            labels[self.label] in self.valid_values
            if self.label in labels
            else self.allows_no_label
            for labels in candidates.labels
        ]
