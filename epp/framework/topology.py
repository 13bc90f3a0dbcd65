"""How near endpoints are to each other, by the labels that Kubernetes gives to nodes.

For plugins that choose who works for another endpoint: KV moves fastest within a host. They derive
from `Topology`, whose fields are their parameters.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """The tightest place that two endpoints share; tightest first."""

    HOST = "host"
    RACK = "rack"
    ZONE = "zone"
    REGION = "region"

    @property
    def looseness(self) -> int:
        """0 for the tightest."""
        return list(Level).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Labels by level, under the names of the reference's `topology-extractor`."""

    hostname: str = "kubernetes.io/hostname"
    rack: str = "topology.kubernetes.io/rack"
    zone: str = "topology.kubernetes.io/zone"
    region: str = "topology.kubernetes.io/region"
    topology_producer_name: str = ""
    """Of the reference, where the labels are read elsewhere; changes nothing."""

    def shared(self, one: Mapping[str, str], other: Mapping[str, str]) -> Level | None:
        """What two endpoints share, by their labels; None: nothing known. A label that is missing
        or empty is shared with nobody."""
        for level, label in zip(Level, self._labels, strict=True):
            value = one.get(label)
            if value and value == other.get(label):
                return level
        return None

    @property
    def _labels(self) -> tuple[str, ...]:
        return self.hostname, self.rack, self.zone, self.region
