"""Which body modes of a gateway's ext_proc filter we serve. No I/O.

`docs/decisions/0001` says what each asks of us, and why GRPC and unknown ones are refused.
"""

from collections.abc import Set as AbstractSet

from epp._pb import extproc_pb2 as pb

_SERVED: AbstractSet[int] = frozenset(
    (pb.NONE, pb.STREAMED, pb.BUFFERED, pb.BUFFERED_PARTIAL, pb.FULL_DUPLEX_STREAMED)
)
HELD: AbstractSet[int] = frozenset((pb.BUFFERED, pb.BUFFERED_PARTIAL))
"""Modes with one body message, for whose reply the gateway holds the headers back, too."""
PIECEWISE: AbstractSet[int] = frozenset((pb.STREAMED, pb.FULL_DUPLEX_STREAMED))
"""Modes in which an answer's headers leave before its body is complete."""
UNCOLLECTED: AbstractSet[int] = frozenset((pb.NONE, pb.STREAMED))
"""Modes in which a request has to be decided at its headers: only then may they be changed."""


def unserved(config: pb.ProtocolConfiguration) -> str:
    """Why this pair of modes cannot be served and what to use instead; empty if it can."""
    for field, mode in (
        ("request_body_mode", config.request_body_mode),
        ("response_body_mode", config.response_body_mode),
    ):
        if mode not in _SERVED:
            name = pb.BodyMode.Name(mode) if mode in pb.BodyMode.values() else str(mode)
            return f"{field} {name} is not supported: use FULL_DUPLEX_STREAMED"
    return ""
