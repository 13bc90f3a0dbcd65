"""Which body modes of a gateway's ext_proc filter we serve. No I/O.

Envoy 1.40 takes any pair of the first five of them. Its configuration takes GRPC as well, but that
mode is for data planes of gRPC itself: Envoy shows a body only when all of it happens to be there
already, so nobody could wait for one.

| mode | the request's body | the answer's body |
|---|---|---|
| NONE | not shown: decided at the headers | not shown |
| STREAMED | decided at the headers, pieces let through | pieces echoed, one for one |
| BUFFERED | decided at the whole body, in its reply | one whole body |
| BUFFERED_PARTIAL | so where it fits the gateway's buffer, else as if not shown | so too |
| FULL_DUPLEX_STREAMED | collected, decided at its end, sent back in pieces | pieces echoed |
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
