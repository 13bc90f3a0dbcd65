"""The words between the ext_proc stream and the director. No I/O.

A stream turns Envoy's messages into one `Arrival`, hands it to the director once, and turns the
`Route` or the `Refusal` that comes back into Envoy's replies. What happens to the answer after
that is told to the route's `Progress`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from epp.errors import Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One whole request as the gateway received it."""

    headers: Mapping[str, str]
    """Lower-case names; repeated headers are joined with a comma. Pseudo headers included."""
    body: bytes = b""
    has_body: bool = False
    """False when the request ended with its headers."""
    body_hidden: bool = False
    """The request has a body, but the gateway keeps it to itself (request body mode NONE)."""
    subset: tuple[str, ...] | None = None
    """Endpoints the gateway allows (`ip:port` or `ip`); None: all, empty: nobody."""

    @property
    def path(self) -> str:
        return self.headers.get(":path", "")

    @property
    def method(self) -> str:
        return self.headers.get(":method", "")


class Progress(Protocol):
    """Told what became of a routed request. Every method is synchronous and may be called late.

    `finished` and `reset` come at most once, and nothing comes after either of them.
    """

    def response_headers(self, status: int, served: str | None) -> None:
        """The answer began. `served`: the endpoint that truly answered, if the gateway said so."""

    def first_body(self) -> None:
        """The first byte of the answer's body passed through us."""

    def finished(self) -> None:
        """The end of the answer was seen on the stream."""

    def reset(self, *, answered: bool) -> None:
        """The stream ended without that. `answered`: response headers had been seen, so the answer
        may well still be running (docs/decisions/0002)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Send the request to `destination`."""

    destination: str
    """`ip:port[,ip:port…]`, best first: header and dynamic metadata get these same bytes."""
    progress: Progress
    set_headers: tuple[tuple[str, str], ...] = ()
    """More request headers, overwriting; names lower-case, values printable ASCII."""
    remove_headers: tuple[str, ...] = field(default=())
    """More headers to remove, besides `protocol.ROUTING_HEADERS` which always are."""
    body: bytes | None = None
    """A changed body, or None: the client's own bytes pass untouched."""


Outcome = Route | Refusal


class Director(Protocol):
    """Decides where a request goes. Never raises a Refusal: it returns it. Anything that it does
    raise is our own fault and ends the stream with a gRPC status (fault A18)."""

    async def decide(self, arrival: Arrival) -> Outcome: ...
