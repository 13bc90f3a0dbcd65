"""Where engines' metrics come from: their pages, where no sidecar reports.

Type: `metrics-data-source`.

Parameters:
- `interval` (as `--refresh-metrics-interval`; at least 50ms, at most 60s): time between two
  readings.
- `path` (`/metrics`): of all pages; the default leaves engines theirs (`trtllm-serve` has
  `/prometheus/metrics`).
- `scheme` (`http`): no other; pages are read at the endpoint's own metrics port.
- `insecureSkipVerify` (true), `caCertPath`, `clientCertPath`, `clientKeyPath`: of TLS, which is not
  offered.

```yaml
- type: metrics-data-source
  parameters:
    interval: 500ms
```
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from epp.framework import Seconds

LEAST_S, MOST_S = 0.05, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsDataSource:
    produces: ClassVar[frozenset[str]] = frozenset({"engine-metrics"})
    without_effect: ClassVar[dict[str, str]] = {
        "insecure_skip_verify": "pages are read without TLS",
    }
    scheme: Literal["http"] = "http"
    path: str = "/metrics"
    interval: Seconds | None = None
    insecure_skip_verify: bool = True
    ca_cert_path: str = ""
    client_cert_path: str = ""
    client_key_path: str = ""

    def __post_init__(self) -> None:
        if self.interval is not None and not 0.0 < self.interval <= MOST_S:
            raise ValueError("interval must be above 0 and at most 60s")
        if not self.path.startswith("/") or self.path.startswith("//"):
            raise ValueError("path must be the path of a page, such as /metrics")
        if self.ca_cert_path or self.client_cert_path or self.client_key_path:
            raise ValueError("caCertPath and client certificates: pages are read without TLS")

    @property
    def interval_s(self) -> float | None:
        return None if self.interval is None else max(self.interval, LEAST_S)
