"""The Envoy configurations that we ship: how each is printed, and what is to stand in it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epp.sim.gateway.modes import Shape, Trailers

MANIFESTS = Path(__file__).parents[2] / "manifests" / "envoy"
STREAMED = "FULL_DUPLEX_STREAMED"


@dataclass(frozen=True)
class Shipped:
    """One file, how it is printed, and what of requests and answers passes the picker in it."""

    name: str
    shape: Shape
    trailers: Trailers
    request_body: str
    request_trailers: str
    response_body: str
    response_trailers: str
    place: tuple[str, ...] = ()
    """Flags that say where it runs, unless that is a laptop."""

    def __str__(self) -> str:
        return self.name

    @property
    def flags(self) -> tuple[str, ...]:
        """Of `epp local gateway-config`."""
        return ("--envoy", self.shape, "--response-trailers", self.trailers, *self.place)

    @property
    def file(self) -> Path:
        return MANIFESTS / f"{self.name}.json"

    @property
    def config(self) -> Any:
        return json.loads(self.file.read_text())

    @property
    def manager(self) -> Any:
        (listener,) = self.config["static_resources"]["listeners"]
        return listener["filter_chains"][0]["filters"][0]["typed_config"]

    @property
    def host(self) -> Any:
        (host,) = self.manager["route_config"]["virtual_hosts"]
        return host

    @property
    def ext_procs(self) -> list[Any]:
        filters = self.manager["http_filters"]
        return [one["typed_config"] for one in filters if "ext_proc" in json.dumps(one)]

    def cluster(self, name: str) -> Any:
        (found,) = [
            one for one in self.config["static_resources"]["clusters"] if one["name"] == name
        ]
        return found


SHIPPED = (
    Shipped("standalone", "standalone", "skip", STREAMED, "SEND", "NONE", "SKIP"),
    Shipped("standalone-trailers", "standalone", "send", STREAMED, "SEND", "NONE", "SEND"),
    Shipped("full-duplex", "full-duplex", "skip", STREAMED, "SEND", STREAMED, "SEND"),
    Shipped("original-dst", "original-dst", "skip", STREAMED, "SEND", "NONE", "SKIP"),
    Shipped("buffered", "buffered", "skip", "BUFFERED", "SKIP", "NONE", "SKIP"),
)

_CLUSTER = ("--host", "0.0.0.0", "--picker-host", "epp-replicas")
KUBERNETES = Shipped(
    "kubernetes", "original-dst", "skip", STREAMED, "SEND", "NONE", "SKIP", _CLUSTER
)
"""`original-dst` at other addresses: what runs with the one runs with the other."""
