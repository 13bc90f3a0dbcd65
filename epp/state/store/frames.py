"""Frames of the state port: a 4-byte big-endian length, then that many bytes. Pure."""

import struct

from epp.errors import StoreError

MAX_FRAME = 1 << 20
_LENGTH = struct.Struct(">I")


def frame(data: bytes) -> bytes:
    """Raises StoreError for more than `MAX_FRAME` bytes."""
    if len(data) > MAX_FRAME:
        raise StoreError(f"a frame of {len(data)} bytes; {MAX_FRAME} are allowed")
    return _LENGTH.pack(len(data)) + data


class FrameBuffer:
    """Cuts a byte stream into frames; holds less than one frame between calls."""

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Frames that are complete by this piece. Raises StoreError for one that is too large."""
        self._bytes += data
        out: list[bytes] = []
        at = 0
        while len(self._bytes) - at >= 4:
            (length,) = _LENGTH.unpack_from(self._bytes, at)
            if length > MAX_FRAME:
                raise StoreError(f"a frame of {length} bytes; {MAX_FRAME} are allowed")
            if len(self._bytes) - at - 4 < length:
                break
            out.append(bytes(self._bytes[at + 4 : at + 4 + length]))
            at += 4 + length
        del self._bytes[:at]
        return out
