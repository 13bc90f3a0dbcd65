"""Split requests with images, audio or video.

Type: `always-disagg-multimodal-decider`.

Made for the encode stage; it decides about prompts as well.

Parameters: none.

```yaml
- type: always-disagg-multimodal-decider
```
"""

from dataclasses import dataclass

from epp.framework import Endpoint, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class AlwaysMultimodal:
    def decide(self, request: Request, __: Endpoint, /) -> str:
        return "split" if request.media_tokens > 0 else "text-only"
