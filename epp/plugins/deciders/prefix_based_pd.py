"""Split a prompt when enough of it is not cached where it will be answered.

Type: `prefix-based-pd-decider`.

Tokens are counted, not blocks (a prompt shorter than a block has tokens too), and they are the
engine's own: bytes only guess (fault B24). A match that nobody knows of counts as none.

Parameters:
- `nonCachedTokens` (0; at least 0): tokens that the destination would have to compute, from which
  the prompt is split; 0 splits nothing.
- `promptTokens` (0; at least 0): shorter prompts are never split.

Formula: `prompt >= promptTokens`, `prompt >= nonCachedTokens` and
`prompt - cached >= nonCachedTokens` (rule of the Gateway API Inference Extension's llm-d router,
which counts estimated tokens as well).

```yaml
- type: prefix-based-pd-decider
  parameters:
    nonCachedTokens: 512
```
"""

from dataclasses import dataclass
from typing import ClassVar

from epp.framework import Endpoint, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixBasedPd:
    consumes: ClassVar[frozenset[str]] = frozenset({"tokens", "prefix-match"})
    non_cached_tokens: int = 0
    prompt_tokens: int = 0

    def __post_init__(self) -> None:
        if self.non_cached_tokens < 0:
            raise ValueError("nonCachedTokens must be at least 0")
        if self.prompt_tokens < 0:
            raise ValueError("promptTokens must be at least 0")

    def decide(self, request: Request, destination: Endpoint, /) -> str:
        if self.non_cached_tokens == 0:
            return "never"
        if not request.scored:
            return "load-only"
        if not request.exact:
            return "tokens-estimated"
        if request.prompt_tokens < max(self.prompt_tokens, self.non_cached_tokens):
            return "below-threshold"
        if destination.match.missing(request.prompt_tokens) < self.non_cached_tokens:
            return "cached"
        return "split"
