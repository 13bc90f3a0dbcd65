"""The shared log: what writers append and every picker replica applies.

Two stores carry the same records (proto/state.proto): a Redis stream, and the picker's own state
port. Both offer a `Writer` to the sidecar and a `Reader` to the picker.
"""

from collections.abc import AsyncIterator
from typing import Protocol

from epp.framework import Incarnation
from epp.state.sums import ReplicaSums


class Writer(Protocol):
    """One engine's way into the log. Owned by one task; a call is never concurrent with another."""

    async def claim(self, incarnation: Incarnation, nonce: int) -> None:
        """Become the only writer of this incarnation; older nonces and lives are fenced by it.

        A claim starts a new sequence: its first record has `seq` 1 and a full state (`reset`).
        Raises StoreError when the store is away, `errors.Fenced` when a later life has a writer.
        """

    async def append(self, record: bytes) -> None:
        """Append one serialised Record, in order; also renews the lease.

        Raises StoreError when it is not known to be in the log: the writer then claims again and
        starts over with a full state (`reset`). Raises `errors.Fenced` when another took over.
        """

    async def close(self) -> None: ...


class Reader(Protocol):
    """A replica's way out of the log."""

    def records(self) -> AsyncIterator["Batch"]:
        """Batches in log order, for ever; reconnects by itself with back-off."""

    @property
    def connected(self) -> bool: ...

    async def close(self) -> None: ...


class SumsBoard(Protocol):
    """Where replicas say what they have reserved. What is not said again disappears by itself."""

    async def publish(self, sums: ReplicaSums) -> None:
        """Replace this replica's sums; they are believed for `LEASE_S`. Raises StoreError."""

    async def others(self) -> list[ReplicaSums]:
        """The sums of all other replicas whose lease has not run out. Raises StoreError."""

    async def close(self) -> None:
        """Take back what was published, where that can be done at once."""


class Batch:
    """Records that arrived together, or a notice that some may be missing."""

    __slots__ = ("records", "resumed")

    def __init__(self, records: list[bytes], *, resumed: bool = False) -> None:
        self.records = records
        self.resumed = resumed
        """True on the first batch after a connection was lost: sequence checks still decide."""
