"""Which endpoints the pool has, by a file.

Type: `file-discovery`.

In force where `dataLayer.discovery.pluginRef` names it; then `--endpoints-file` must not stand
beside it, for a pool has one list of members. The file is the one that `--endpoints-file` takes. A
bad file stops the start; later, a bad change leaves the list as it was, where the reference takes
the good entries of it.

Parameters:
- `path` (no default): absolute path of the file, YAML or JSON, at most 1 MiB.
- `watchFile` (false): the file is read again when it changes; else it is read once. The sidecars'
  `--endpoints-file` is always followed.

```yaml
- type: file-discovery
  parameters:
    path: /etc/epp/endpoints.yaml
    watchFile: true
```
"""

from dataclasses import dataclass
from pathlib import PurePath
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDiscovery:
    produces: ClassVar[frozenset[str]] = frozenset({"endpoints"})
    path: str
    watch_file: bool = False

    def __post_init__(self) -> None:
        if not PurePath(self.path).is_absolute():
            raise ValueError("path must be the absolute path of a file")
