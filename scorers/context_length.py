"""Prefer endpoints that are set up for prompts of this length, by a label.

Type: `context-length-aware`.

The label holds a range of prompt tokens, such as `0-8192`. An endpoint within whose range the
prompt falls always wins against one outside; the narrower the range, and the more room is left
above the prompt, the better. Outside the nearest range wins. An endpoint without the label scores
0.5, one whose label is no range 0.

Parameters:
- `label` (`llm-d.ai/context-length-range`): the label's name.
- `enableFiltering` (false): also drop endpoints whose range the prompt is outside of, or whose
  label is no range. Those without the label stay.

Formula (of the Gateway API Inference Extension's llm-d router), inside the range `min-max`:
`0.3 + 0.7 * (0.7 / (1 + width / 10000) + 0.3 * (max - tokens) / width)`, and 1 for a range of one
length; outside: `0.3 / (1 + distance / 1000)`.

```yaml
- type: context-length-aware
  parameters:
    label: llm-d.ai/context-length-range
    enableFiltering: true
```
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from epp.framework import Candidates, Request

UNLABELLED = 0.5
OUTSIDE = 0.3
"""What an endpoint outside of whose range the prompt is scores at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextLength:
    consumes: ClassVar = frozenset({"tokens"})

    label: str = "llm-d.ai/context-length-range"
    enable_filtering: bool = False

    def __post_init__(self) -> None:
        if not self.label:
            raise ValueError("label must not be empty")

    def score(self, request: Request, candidates: Candidates, /) -> list[float]:
        tokens, label = request.prompt_tokens, self.label
        texts = [labels.get(label) for labels in candidates.labels]
        scores = {text: _score(tokens, text) for text in set(texts)}
        return [scores[text] for text in texts]

    def keep(self, request: Request, candidates: Candidates, /) -> list[bool]:
        if not self.enable_filtering:
            return [True] * len(candidates)
        tokens, label = request.prompt_tokens, self.label
        texts = [labels.get(label) for labels in candidates.labels]
        stays = {text: _fits(tokens, text) for text in set(texts)}
        return [stays[text] for text in texts]


@lru_cache(maxsize=1024)
def _bounds(text: str) -> tuple[int, int] | None:
    """Least and most tokens; None where the text is no range."""
    parts = [part.strip() for part in text.split("-")]
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() for part in parts):
        return None
    if max(map(len, parts)) > 18:
        return None
    least, most = int(parts[0]), int(parts[1])
    return (least, most) if least <= most else None


def _fits(tokens: int, text: str | None) -> bool:
    if text is None:
        return True
    bounds = _bounds(text)
    return bounds is not None and bounds[0] <= tokens <= bounds[1]


def _score(tokens: int, text: str | None) -> float:
    if text is None:
        return UNLABELLED
    bounds = _bounds(text)
    if bounds is None:
        return 0.0
    least, most = bounds
    if not least <= tokens <= most:
        distance = max(least - tokens, tokens - most)
        return OUTSIDE / (1.0 + distance / 1000.0)
    width = most - least
    if width == 0:
        return 1.0
    tight, room = 1.0 / (1.0 + width / 10_000.0), (most - tokens) / width
    return OUTSIDE + (1.0 - OUTSIDE) * (0.7 * tight + 0.3 * room)
