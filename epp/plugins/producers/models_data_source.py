"""Which models each endpoint serves, by its page of models.

Type: `models-data-source`.

Pages are read where a plugin in a profile reads served models, such as `served-model-filter`; else
nothing is asked. It is put in with its defaults where such a plugin stands alone.

Parameters:
- `path` (`/v1/models`): of all pages, at the endpoint's own address.
- `interval` (10s; 1s to 10m): time between two readings of a page.
- `scheme` (`http`): no other.
- `insecureSkipVerify` (true), `caCertPath`, `clientCertPath`, `clientKeyPath`: of TLS, which is not
  offered.

```yaml
- type: models-data-source
  parameters:
    interval: 30s
```
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from epp.framework import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsDataSource:
    produces: ClassVar[frozenset[str]] = frozenset({"served-models"})
    without_effect: ClassVar[dict[str, str]] = {
        "insecure_skip_verify": "pages are read without TLS",
    }
    scheme: Literal["http"] = "http"
    path: str = "/v1/models"
    interval: Seconds = 10.0
    insecure_skip_verify: bool = True
    ca_cert_path: str = ""
    client_cert_path: str = ""
    client_key_path: str = ""

    def __post_init__(self) -> None:
        if not 1.0 <= self.interval <= 600.0:
            raise ValueError("interval must lie between 1s and 10m")
        if not self.path.startswith("/") or self.path.startswith("//"):
            raise ValueError("path must be the path of a page, such as /v1/models")
        if self.ca_cert_path or self.client_cert_path or self.client_key_path:
            raise ValueError("caCertPath and client certificates: pages are read without TLS")

    @property
    def models_path(self) -> str:
        return self.path

    @property
    def models_interval_s(self) -> float:
        return self.interval
