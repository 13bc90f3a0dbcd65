"""Keep endpoints that serve the wanted model, in a pool whose endpoints differ in that.

Type: `served-model-filter`.

Endpoints say by their page of models what they serve, LoRA adapters among it. All stay where
nobody is known to serve the model, or the request names none: engines may load an adapter when they
are asked for it, and theirs is the answer to a name that nobody has. One that has not said anything
yet goes, where another one is known to serve it.

Parameters: none.

```yaml
- type: served-model-filter
```
"""

from collections.abc import Collection
from collections.abc import Set as AbstractSet
from typing import ClassVar

import numpy as np

from epp.framework import Candidates, Decision, EndpointId, Mask, Request


class ServedModel:
    consumes: ClassVar[frozenset[str]] = frozenset({"served-models"})

    def __init__(self) -> None:
        self._models: dict[EndpointId, frozenset[str]] = {}
        self._servers: dict[str, set[EndpointId]] = {}

    def keep(self, request: Request, candidates: Candidates, /) -> Mask:
        servers = self._servers.get(request.target_model)
        if servers:
            mask = np.fromiter(
                (one in servers for one in candidates.ids), np.bool_, len(candidates)
            )
            if mask.any():
                return mask
        return np.ones(len(candidates), dtype=np.bool_)

    def serves(self, endpoint: EndpointId, models: AbstractSet[str], /) -> None:
        known = self._models.get(endpoint, frozenset())
        if models == known:
            return
        for name in known - models:
            self._forget(name, endpoint)
        for name in models - known:
            self._servers.setdefault(name, set()).add(endpoint)
        self._models[endpoint] = frozenset(models)

    def chosen(self, request: Request, decision: Decision, /) -> None:
        """Says nothing about what an endpoint serves."""

    def removed(self, endpoints: Collection[EndpointId], /) -> None:
        for endpoint in endpoints:
            for name in self._models.pop(endpoint, ()):
                self._forget(name, endpoint)

    def _forget(self, name: str, endpoint: EndpointId) -> None:
        servers = self._servers[name]
        servers.remove(endpoint)
        if not servers:
            del self._servers[name]
