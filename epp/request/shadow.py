"""Mode `shadow`: everything is decided and counted, and the gateway hears nothing of it.

It balances by itself, as if there were no picker. What is wrong with a request is refused all the
same, and models get their other names: neither is a matter of balancing. Nothing is shed, and where
nobody of ours is ready the gateway may know better. A decision is booked on the endpoint that was
chosen, so that those after it spread as they would, and moves to the one that truly served as soon
as the gateway says which that was.
"""

from collections.abc import Sequence

from epp import protocol
from epp.bodies.usage import Usage
from epp.framework import Decision

from .exchange import Route
from .understanding import Understood

REASON = "shadow: the gateway balances by itself"


class Unseen:
    """Implements `exchange.Progress` for a request about which nothing was decided."""

    __slots__ = ()

    def response_headers(
        self, status: int, served: str | None, *, streaming: bool = False
    ) -> Sequence[tuple[str, str]]:
        return ()

    def body(self, size: int) -> None:
        pass

    def usage(self, usage: Usage) -> None:
        pass

    def finished(self) -> None:
        pass

    def reset(self, *, answered: bool) -> None:
        pass


def unrouted(understood: Understood) -> Route:
    """Let a request pass for which we know nobody."""
    return Route(destination=None, progress=Unseen(), body=understood.body, model=understood.model)


def headers(decision: Decision) -> tuple[tuple[str, str], ...]:
    """What the sidecar of whoever serves is told: under which id to say that the request ended."""
    return ((protocol.DECISION_ID, decision.request_id),)
