"""Prefer endpoints whose encoder cache probably holds the request's images, audio and video.

Type: `mm-embeddings-cache-scorer`.

Computing the embeddings of an image takes an engine about as long as a prompt of some hundred
tokens, and it keeps them for a while. An endpoint that holds all of a request's media scores 1, one
that holds none 0. A request without media, or whose media nobody holds, scores 0 everywhere, so
that it is left to other scorers. Works beside `prefix-cache-scorer`: the same image in another
conversation is no common prefix.

Parameters:
- `producerName` (none): which `mm-embeddings-cache-producer` tells who holds what. There is one; a
  name that no entry has is refused. Without an entry one with its defaults is put in.

Formula: `held bytes / all bytes` of the request's media (rule of the Gateway API Inference
Extension's llm-d router). Sizes of embeddings are guessed, equal for all media, so that it is the
share of those that are held.

```yaml
- type: mm-embeddings-cache-scorer
```
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from epp.framework import Candidates, Column, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class MmEmbeddingsCache:
    consumes: ClassVar = frozenset({"encoder-cache"})
    without_effect: ClassVar = {"producer_name": "there is one account of who holds which media"}

    producer_name: str = ""

    def score(self, request: Request, candidates: Candidates, /) -> Column:
        held = request.media_held
        whole = sum(size for _, size in request.media)
        if not held or whole <= 0:
            return np.zeros(len(candidates))
        shares = np.fromiter(
            (held.get(ident, 0) for ident in candidates.ids), np.float64, len(candidates)
        )
        return np.minimum(shares / whole, 1.0)
