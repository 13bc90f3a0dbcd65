"""The shared log: what writers append and every picker replica applies.

Two stores carry the same records (proto/state.proto): Redis, and the picker's own state port. Both
offer a `Writer` to the sidecar and a `Reader` to the picker; Redis also a `SumsBoard` to replicas.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from epp.framework import EndpointId, Incarnation
from epp.state.sums import ReplicaSums


@dataclass(frozen=True, slots=True)
class Saved:
    """All that a writer knows at one point of its sequence."""

    parts: tuple[bytes, ...]
    """Serialised Records, each a `Part` of the snapshot, for readers."""
    memory: bytes
    """For the writer after us; readers never see it."""


class Writer(Protocol):
    """One engine's way into the log. Owned by one task; a call is never concurrent with another.

    After `claim` comes `save`, and then `append` and `save` as they are due.
    """

    @property
    def writers(self) -> int:
        """How many writers share this log, as far as it said so; 1 at least."""

    async def recall(self, incarnation: Incarnation) -> bytes | None:
        """The memory that the last writer of this very life left; None without one.

        Raises StoreError when the store is away.
        """

    async def claim(self, incarnation: Incarnation, nonce: int) -> None:
        """Become the only writer of this incarnation; older nonces and lives are fenced by it.

        A claim starts a new sequence: its snapshot has `seq` 0, its first record 1.
        Raises StoreError when the store is away, `errors.Fenced` when a later life has a writer.
        """

    async def append(self, record: bytes) -> None:
        """Append one serialised Record, in order; also renews the lease.

        Raises StoreError when it is not known to be in the log: the writer then claims again and
        starts over with a snapshot. Raises `errors.Fenced` when another took over.
        """

    async def save(self, saved: Saved) -> None:
        """Replace this incarnation's snapshot: it includes all that was appended so far, and no
        more. Raises like `append`."""

    async def close(self) -> None: ...


class Stream(Protocol):
    """One of the streams that make up the log. Owned by one task."""

    def records(self) -> AsyncIterator[list[bytes]]:
        """Records that arrived together, for ever: steps of sequences and parts of snapshots, in
        the order in which to apply them. Reconnects by itself with back-off."""

    @property
    def behind_s(self) -> float:
        """How long ago the records that came last may have been written, in seconds at most, where
        that is worth mentioning: after a pause we read what was said meanwhile."""

    def reread(self, endpoints: Iterable[EndpointId]) -> None:
        """Records of these are missing: next comes their last snapshot, where there is one, and
        what followed on it."""


class Reader(Protocol):
    """A replica's way out of the log."""

    @property
    def streams(self) -> Sequence[Stream]:
        """An endpoint's records are all in one of them."""

    def stream_of(self, endpoint: EndpointId) -> Stream: ...

    @property
    def connected(self) -> bool:
        """Whether all of the log is within reach."""

    @property
    def listening_since(self) -> float | None:
        """From when on it has been so without a break, by the loop's clock; None: it is not."""

    @property
    def lag_s(self) -> float | None:
        """How long ago there was last nothing in the log that we had not read; 0: that is so now.
        None while it is out of reach."""

    @property
    def warm(self) -> bool:
        """Whether what was known before we came has been read, once."""

    @property
    def happened(self) -> Mapping[str, int]:
        """How often, by a fixed set of words: what went wrong, and what was done about it."""

    @property
    def held(self) -> Mapping[str, int]:
        """How much is kept here of what has a limit, by a fixed set of words."""

    async def close(self) -> None: ...


class OneStream:
    """A reader that is its only stream, of a log that keeps nothing for who comes late."""

    @property
    def streams(self) -> Sequence[Self]:
        return (self,)

    def stream_of(self, _: EndpointId) -> Self:
        return self

    @property
    def behind_s(self) -> float:
        """Records come as they are said, or not at all."""
        return 0.0

    @property
    def lag_s(self) -> float:
        return 0.0

    @property
    def warm(self) -> bool:
        """Nothing was known before we came: writers say what they know as they connect."""
        return True

    @property
    def happened(self) -> Mapping[str, int]:
        """Nothing of note: another process keeps the log."""
        return {}

    @property
    def held(self) -> Mapping[str, int]:
        return {}


class SumsBoard(Protocol):
    """Where replicas say what they have reserved. What is not said again disappears by itself."""

    async def publish(self, sums: ReplicaSums) -> None:
        """Replace this replica's sums; they are believed for `LEASE_S`. Raises StoreError."""

    async def others(self) -> list[ReplicaSums]:
        """The sums of all other replicas whose lease has not run out. Raises StoreError."""

    async def close(self) -> None:
        """Take back what was published, where that can be done at once."""
