"""What workers of one picker say to each other, in frames as on the state port. Pure.

A record goes down as it came. Sums go both ways and begin with a zero byte, which no message of
protobuf's does.
"""

from epp.state import sums
from epp.state.store.frames import frame
from epp.state.sums import ReplicaSums

_SUMS = b"\x00"


def said(own: ReplicaSums) -> bytes:
    """Sums as a frame. Raises StoreError when they do not fit into one."""
    return frame(_SUMS + sums.encode(own))


def heard(message: bytes) -> ReplicaSums | None:
    """The sums in a message; None for a record. Raises SumsError."""
    return sums.parse(message[1:]) if message[:1] == _SUMS else None
