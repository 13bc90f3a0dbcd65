"""Where engines of a pool listen for each other. Pure.

Pods of a pool listen alike: rank r of a pod has the ports that rank 0 has, r further up.
"""

from dataclasses import dataclass

from sidecar.transfer.targets import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Ports of rank 0."""

    sidecar: int = 8000
    """Where its sidecar listens."""
    ranks: int = 1
    """Data parallel ranks of a pod."""
    bootstrap: int = 8998
    """Bootstrap server of SGLang and Mooncake, one for all ranks of a pod."""
    p2p: int = 7777
    """The offloading connector's, one for each rank."""

    def rank_of(self, target: Target) -> int:
        """The rank behind a member's port; 0 for a port that is no rank's."""
        rank = target.port - self.sidecar
        return rank if 0 <= rank < self.ranks else 0
