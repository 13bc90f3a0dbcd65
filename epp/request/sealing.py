"""Seals what a decision tells the destination's sidecar about other pods. Pure.

Sidecars that hold the key hand a prompt to nobody whom the picker did not name (`epp.seals`).
"""

from collections.abc import Callable, Mapping

from epp import protocol
from epp.seals import LIFE_S, Named, SealKeys


class Sealer:
    """One for a pool. `keys` is replaced when the file changes."""

    def __init__(
        self,
        pool: str,
        keys: SealKeys,
        *,
        wall_s: Callable[[], float],
        life_s: float = LIFE_S,
    ) -> None:
        """`life_s`: from the decision to the sidecar, whatever the gateway does in between."""
        self._pool = pool
        self.keys = keys
        self._wall_s = wall_s
        self._life_s = life_s

    def header(self, told: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        """The seal for these headers of a decision; none where no other pod is named."""
        prefill, encode, source = (
            told.get(name, "")
            for name in (protocol.PREFILLER, protocol.ENCODERS, protocol.KV_SOURCE)
        )
        if not (prefill or encode or source):
            return ()
        named = Named(
            pool=self._pool,
            decision_id=told[protocol.DECISION_ID],
            prefill=prefill,
            encode=encode,
            source=source,
        )
        return ((protocol.HANDOFF, self.keys.seal(named, self._wall_s(), self._life_s)),)
