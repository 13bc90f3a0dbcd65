"""What one ext_proc port takes on, and what it counted."""

from dataclasses import dataclass, field

from epp.request.stream import MAX_REQUEST_BYTES

from .patience import BodyPace


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportLimits:
    """Each limit protects the memory of a picker process, none shapes traffic."""

    max_request_bytes: int = MAX_REQUEST_BYTES
    """Largest request body; a longer one is answered with 413."""
    max_total_bytes: int = 512 * 2**20
    """Bytes of request bodies held at once."""
    max_streams: int = 16_384
    """Concurrent streams, one per running HTTP request: more are refused with
    RESOURCE_EXHAUSTED. Far above the 1,024 at which gateways and thread pools fail (A19)."""
    max_recv_bytes: int | None = None
    """Largest message from a gateway; None: a whole body in BUFFERED mode, and its frame."""
    max_send_bytes: int | None = None
    """Largest message to a gateway; None: no limit of ours."""
    hard_deadline_s: float = 5.0
    """Backstop for a director that breaks its own deadline (A17)."""
    pace: BodyPace = field(default_factory=BodyPace)
    """The slowest body that is waited for; a slower one is answered with 408 (G13)."""

    @property
    def max_message_bytes(self) -> int:
        """Largest message that is received."""
        if self.max_recv_bytes is not None:
            return self.max_recv_bytes
        return max(self.max_request_bytes, 4 * 2**20) + 2**20


@dataclass(slots=True)
class StreamCounts:
    """What became of the streams. Plain numbers that only grow, but for `live`."""

    started: int = 0
    live: int = 0
    routed: int = 0
    refused: dict[str, int] = field(default_factory=dict[str, int])
    """By the refusal's reason, a closed set of words."""
    aborted: dict[str, int] = field(default_factory=dict[str, int])
    """By gRPC status: protocol faults of the gateway, too many streams, and our own faults."""
    late: int = 0
    """Decisions that nobody waited for any more."""
    backstops: int = 0
    """Directors that broke the hard deadline."""
    faults: int = 0
    """Exceptions of our own code."""

    def refuse(self, reason: str) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + 1

    def abort(self, status: str) -> None:
        self.aborted[status] = self.aborted.get(status, 0) + 1
