"""Tokens of prompts: the engines' own, or estimated from bytes.

Type: `token-producer`; older name `tokenizer`.

Without it, and without `estimate`, engines are asked for their own tokens by `/tokenize`, and bytes
are counted where none answers in time. The reference estimates unless it is told of an engine.

Parameters:
- `estimate` (none): estimate always; four bytes are one token. Its fields tell how large images and
  videos are, and change nothing: each counts as 1,024 tokens.
- `vllm` (none; `url`, `timeout`, `mmTimeout`) and `modelName`: ask engines, as without them. Asked
  are those that serve, in the time that a decision has.
- `udsTokenizerConfig`: a tokenizer behind a socket is not offered.

```yaml
- type: token-producer
  parameters:
    estimate: {}
```
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from epp.framework import Seconds, parameters


@parameters
class Vllm:
    url: str = "http://localhost:8000"
    timeout: Seconds = 5.0
    mm_timeout: Seconds = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    produces: ClassVar[frozenset[str]] = frozenset({"tokens"})
    without_effect: ClassVar[dict[str, str]] = {
        "model_name": "each request names its model",
        "vllm": "the engines that serve are asked, in the time that a decision has",
    }
    model_name: str = ""
    vllm: Vllm | None = None
    estimate: dict[str, Any] | None = None
    uds_tokenizer_config: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if self.uds_tokenizer_config:
            raise ValueError("udsTokenizerConfig is not offered: engines are asked by /tokenize")
        if self.estimate is not None and (self.vllm is not None or self.model_name):
            raise ValueError("estimate stands beside vllm or modelName; use one of them")

    @property
    def exact(self) -> bool:
        return self.estimate is None
