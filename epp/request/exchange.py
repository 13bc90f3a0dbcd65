"""The words between the ext_proc stream and the director. No I/O.

A stream turns Envoy's messages into one `Arrival`, hands it to the director once, and turns the
`Route` or the `Refusal` that comes back into Envoy's replies. What happens to the answer after
that is told to the route's `Progress`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from epp.bodies.usage import Usage
from epp.errors import Refusal
from epp.framework.quick import quick


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
    pool: str | None = None
    """The pool that the gateway means; None where it says nothing of that."""
    answer_shown: bool = False
    """The gateway will show us the answer's body."""

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

    def response_headers(
        self, status: int, served: str | None, *, streaming: bool = False
    ) -> Sequence[tuple[str, str]]:
        """The answer began. `served`: the endpoint that truly answered; None where the gateway
        sent no metadata, empty where that says nothing. `streaming`: its body is a stream of
        events.

        Gives headers to set in the answer, under the rules of `Route.set_headers`.
        """

    def body(self, size: int) -> None:
        """A piece of the answer's body passed through us. Only where bodies do at all."""

    def usage(self, usage: Usage) -> None:
        """What the answer's body says it cost. At most once, right before `finished`."""

    def finished(self) -> None:
        """The end of the answer was seen on the stream."""

    def reset(self, *, answered: bool) -> None:
        """The stream ended without that. `answered`: response headers had been seen, so the answer
        may well still be running (docs/decisions/0002)."""


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Send the request to `destination`."""

    destination: str | None
    """`ip:port[,ip:port…]`, best first: header and dynamic metadata get these same bytes. None: the
    gateway balances by itself, and hears of no endpoint at all."""
    progress: Progress
    set_headers: tuple[tuple[str, str], ...] = ()
    """More request headers, overwriting; names lower-case, values printable ASCII."""
    remove_headers: tuple[str, ...] = field(default=())
    """More headers to remove, besides `protocol.ROUTING_HEADERS` which always are."""
    body: bytes | None = None
    """A changed body, or None: the client's own bytes pass untouched."""
    scores: tuple[tuple[str, float], ...] = ()
    """`ip:port` and total score of every candidate that was scored, where the gateway wants them
    in the dynamic metadata."""
    model: "ModelName | None" = None
    """The model's name in the answer, where it has to be put back."""


@dataclass(frozen=True, slots=True)
class ModelName:
    """A model that the client calls by another name than the engine does."""

    asked: str
    """The client's word."""
    served: str
    """The engine's."""


Outcome = Route | Refusal


class Director(Protocol):
    """Decides where a request goes. Never raises a Refusal: it returns it. Anything that it does
    raise is our own fault and ends the stream with a gRPC status (fault A18)."""

    async def decide(self, arrival: Arrival) -> Outcome: ...
