"""Own block keys, packed as they travel: eight bytes each, little endian. Pure.

A record brings thousands of them, and the index takes their bytes: no key need become a Python
number on the way (a tuple of them costs more than putting them into the index). Sidecars read this
too; numpy would cost them 20 MB.
"""

import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import Self, overload

SIZE = 8
"""Bytes of one key."""


class PackedKeys(Sequence[int]):
    """Unsigned numbers of 64 bits; equal to any other sequence of the same numbers."""

    __slots__ = ("packed",)

    def __init__(self, packed: bytes) -> None:
        """Raises ValueError for a piece of a key."""
        if len(packed) % SIZE:
            raise ValueError(f"{len(packed)} bytes are no whole number of keys")
        self.packed = packed

    @classmethod
    def of(cls, keys: Sequence[int]) -> Self:
        """Raises OverflowError for a number that is no key."""
        return cls(packed(keys))

    def __len__(self) -> int:
        return len(self.packed) // SIZE

    def __iter__(self) -> Iterator[int]:
        return iter(_turned(array("Q", self.packed)))

    @overload
    def __getitem__(self, place: int) -> int: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[int]: ...

    def __getitem__(self, place: int | slice) -> int | Sequence[int]:
        if isinstance(place, slice):
            return PackedKeys(packed(_turned(array("Q", self.packed))[place]))
        at = range(len(self))[place] * SIZE
        return int.from_bytes(self.packed[at : at + SIZE], "little")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PackedKeys):
            return self.packed == other.packed
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


def packed(keys: Sequence[int]) -> bytes:
    """The bytes of these keys. Raises OverflowError for a number that is no key."""
    if isinstance(keys, PackedKeys):
        return keys.packed
    return _turned(array("Q", keys)).tobytes()


def _turned(keys: "array[int]") -> "array[int]":
    """From this machine's order of bytes to little endian, or back."""
    if sys.byteorder == "big":
        keys.byteswap()
    return keys
