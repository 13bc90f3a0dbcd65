"""The memory of a writer: all that it needs to go on with an engine's events after it restarted.

Columns, one row for each engine block, in the order of `runs`. `pack` makes one blob of them, of
about 8 bytes for an engine block and 8 more for each own key; a snapshot carries it, and only
writers read it. What readers credit is told apart from this (`EngineBlocks.present`): a block in
here may complete a key that a hole before it takes away.

Tokens are kept only where a chain of own keys can be continued in the middle of an own block: at
its ends and forks. A continuation anywhere else has an unknown parent, and so earns nothing.
"""

import sys
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from epp.errors import EppError

from .blocks import SCHEME
from .events import Hash

VERSION = 1
MAX_ENTRIES = 4_000_000
"""Engine blocks in one memory; a blob that claims more is not read."""
MAX_COLUMN = 128 << 20
"""Bytes of one unpacked column."""
NOT_SPANNING = -1
"""Parent of a block that begins where an own block does, or that starts its prompt."""
NOT_HELD = -2
"""Parent of a block that reaches back into one that is gone."""


class EntriesError(EppError):
    """A memory that can't be used: damaged, too large, or of another version or scheme."""

    reason = "writer-memory"


_GONE = -(1 << 31)
_Kind = Literal["Q", "I", "i"]
"""Numbers of 64 and of 32 bits without a sign, and of 32 bits with one."""


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive rows that agree in these."""

    tier: str
    group: int
    seed: int
    """Of their chains; see `blocks`."""
    count: int


@dataclass(frozen=True, slots=True)
class Tail:
    """Where the chain of own keys stands at the end of one block."""

    row: int
    chain: int | None
    """Last own key at or before its end; None before the first."""
    tokens: bytes | None
    """Packed tokens after that key; None where they aren't known."""
    extra: bytes
    """Identities of what isn't text there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    runs: tuple[Run, ...] = ()
    hashes: tuple[Hash, ...] = ()
    references: tuple[int, ...] = ()
    """How many times each block was stored and not removed."""
    parents: tuple[int, ...] = ()
    """Row of the block that each reaches back into, or NOT_SPANNING, or NOT_HELD."""
    key_counts: tuple[int, ...] = ()
    keys: tuple[int, ...] = ()
    """Own keys that the blocks complete, `key_counts` of them for each, in order."""
    tails: tuple[Tail, ...] = ()
    engine_seq: int | None = None
    """Sequence of the engine's last message that is in here; None before the first."""
    whole: bool = True
    """These are all of the engine's blocks."""

    def __len__(self) -> int:
        return len(self.hashes)

    def pack(self) -> bytes:
        """One blob, the same for equal entries."""
        whole = _Packed(
            version=VERSION,
            scheme=SCHEME,
            engine_seq=self.engine_seq,
            runs=[(run.tier, run.group, run.seed, run.count) for run in self.runs],
            hashes=_packed_hashes(self.hashes),
            references=_small("I", self.references),
            parents=_small("i", _steps(self.parents)),
            key_counts=_small("I", self.key_counts),
            keys=_raw("Q", self.keys),
            tails=[(tail.row, tail.chain, tail.tokens, tail.extra) for tail in self.tails],
            whole=self.whole,
        )
        return msgspec.msgpack.encode(whole)

    @classmethod
    def unpack(cls, data: bytes) -> "Entries":
        """Read a blob. Raises EntriesError; what comes back is consistent in itself."""
        try:
            packed = msgspec.msgpack.decode(data, type=_Packed)
            if (packed.version, packed.scheme) != (VERSION, SCHEME):
                raise EntriesError("the memory is of another version")
            entries = _unpacked(packed)
        except (msgspec.MsgspecError, ValueError, TypeError, zlib.error) as error:
            raise EntriesError(f"the memory can't be read: {error}") from error
        _check(entries)
        return entries


class _Packed(msgspec.Struct, array_like=True):
    version: int
    scheme: int
    engine_seq: int | None
    runs: list[tuple[str, int, int, int]]
    hashes: bytes | list[Hash]
    """Raw unsigned 64 bit, little endian, or whatever else the engine's hashes are."""
    references: bytes
    parents: bytes
    """How many rows before its own each parent stands; 0 is NOT_SPANNING."""
    key_counts: bytes
    keys: bytes
    tails: list[tuple[int, int | None, bytes | None, bytes]]
    whole: bool = True


def _unpacked(packed: _Packed) -> Entries:
    special = {0: NOT_SPANNING, _GONE: NOT_HELD}
    steps = _column("i", packed.parents)
    raw = packed.hashes
    return Entries(
        runs=tuple(Run(*run) for run in packed.runs),
        hashes=tuple(_numbers("Q", raw) if isinstance(raw, bytes) else raw),
        references=tuple(_column("I", packed.references)),
        parents=tuple(special.get(step, row - step) for row, step in enumerate(steps)),
        key_counts=tuple(_column("I", packed.key_counts)),
        keys=tuple(_numbers("Q", packed.keys)),
        tails=tuple(Tail(*tail) for tail in packed.tails),
        engine_seq=packed.engine_seq,
        whole=packed.whole,
    )


def _check(entries: Entries) -> None:
    count = len(entries)
    fits = (
        count <= MAX_ENTRIES
        and count == sum(run.count for run in entries.runs)
        and all(run.count >= 0 for run in entries.runs)
        and count == len(entries.references) == len(entries.parents) == len(entries.key_counts)
        and all(references > 0 for references in entries.references)
        and len(entries.keys) == sum(entries.key_counts)
        and all(NOT_HELD <= parent < count for parent in entries.parents)
        and all(0 <= tail.row < count for tail in entries.tails)
    )
    if not fits:
        raise EntriesError("the memory's columns don't fit each other")


def _packed_hashes(hashes: Sequence[Hash]) -> bytes | list[Hash]:
    numbers = [one for one in hashes if isinstance(one, int) and one >= 0]
    return _raw("Q", numbers) if len(numbers) == len(hashes) else list(hashes)


def _steps(parents: Sequence[int]) -> list[int]:
    special = {NOT_SPANNING: 0, NOT_HELD: _GONE}
    return [special.get(parent, row - parent) for row, parent in enumerate(parents)]


def _small(kind: _Kind, numbers: Sequence[int]) -> bytes:
    """Columns of small numbers that repeat nearly vanish."""
    return zlib.compress(_raw(kind, numbers), 1)


def _column(kind: _Kind, data: bytes) -> "array[int]":
    reader = zlib.decompressobj()
    raw = reader.decompress(data, MAX_COLUMN)
    if not reader.eof:
        raise ValueError("a column is too long")
    return _numbers(kind, raw)


def _raw(kind: _Kind, numbers: Sequence[int]) -> bytes:
    """Little endian."""
    return _turned(array(kind, numbers)).tobytes()


def _numbers(kind: _Kind, raw: bytes) -> "array[int]":
    return _turned(array(kind, raw))


def _turned(numbers: "array[int]") -> "array[int]":
    """From this machine's order of bytes to little endian, or back."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
