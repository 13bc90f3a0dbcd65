"""How near endpoints are to each other, by the labels that Kubernetes gives to nodes.

For plugins that choose who works for another endpoint: KV moves fastest within a host. They derive
from `Topology`, whose fields are their parameters.
"""

from collections.abc import Callable, Mapping
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

    def near(self, one: Mapping[str, str]) -> Callable[[Mapping[str, str]], Level | None]:
        """Says of the labels of another endpoint what it shares with the one of these; None:
        nothing known. A label that is missing or empty is shared with nobody."""
        places = [
            (level, label, value)
            for level, label in zip(Level, self._labels, strict=True)
            if (value := one.get(label))
        ]

        def shares(other: Mapping[str, str]) -> Level | None:
            for level, label, value in places:
                if other.get(label) == value:
                    return level
            return None

        return shares

    @property
    def _labels(self) -> tuple[str, ...]:
        return self.hostname, self.rack, self.zone, self.region
