"""What a decision needs of its neighbours: the state path behind it, the observers beside it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from epp.bodies.usage import Usage
from epp.errors import Refusal
from epp.framework import Candidates, Decision, Endpoint, EndpointId, Request, Rung


class Pool(Protocol):
    """The state path as a decision sees it; implemented by `epp.state.pool.PoolState`.

    Times are monotonic seconds. Nothing waits; calls for requests that are not known do nothing.
    """

    def candidates(
        self, keys: tuple[int, ...], *, block_tokens: int, prompt_tokens: int, now: float
    ) -> Candidates:
        """Ready endpoints with load and match."""

    def ready(self, now: float) -> Candidates:
        """Ready endpoints with load, without match."""

    def at(self, address: str, now: float) -> Endpoint | None:
        """The endpoint behind an address, ready or not, without match."""

    def twins(self, keys: tuple[int, ...], now: float) -> Mapping[EndpointId, int]:
        """How many equal prompts were put on whom lately."""

    def rung(self, endpoint: EndpointId, now: float) -> Rung: ...
    def charge(
        self,
        endpoint: Endpoint,
        request: Request,
        now: float,
        *,
        prefill: Endpoint | None = None,
        encode: Sequence[Endpoint] = (),
    ) -> None:
        """Put a decision's load and predictions on the destination, and on who prefills or encodes
        for it."""

    def served_by(
        self, request: Request, address: str, chosen: Sequence[Endpoint], now: float
    ) -> None:
        """Another endpoint than the first of `chosen` serves: what was charged goes there."""

    def response_headers(
        self, request_id: str, status: int, now: float, *, streaming: bool = True
    ) -> None: ...
    def first_byte(self, request_id: str, now: float) -> None: ...
    def finished(self, request_id: str, now: float) -> None: ...
    def reset(self, request_id: str, *, answered: bool, now: float) -> None: ...


class Observer(Protocol):
    """Told what happened, for metrics and `/debug/decisions`. Quick, and never raises."""

    def decided(self, decision: Decision, request: Request, why: str, took_s: float) -> None:
        """`why` is one of a few stable words: `ok`, or why the decision knew less than it might."""

    def refused(self, refusal: Refusal) -> None: ...

    def failed(self, step: str) -> None:
        """A step raised; the decision went on one rung lower."""

    def ignored(self, header: str) -> None:
        """A header of the gateway had a value that cannot be used; a stable word for its name."""

    def answered(self, request: Request, status: int, *, as_told: bool) -> None:
        """The answer began. `as_told` is False when another endpoint than the first served it."""

    def shadowed(self, request: Request, *, agreed: bool | None) -> None:
        """The gateway balanced by itself. `agreed`: it came to the endpoint that was chosen; None:
        it does not say to which."""


class Meter(Protocol):
    """Measures one answer whose body passes through us; see `epp.answers.Meter`."""

    def streams(self) -> None:
        """The answer is good so far, and comes as a stream of events."""

    def piece(self, size: int, now: float) -> None:
        """The next bytes of the answer's body, never none."""

    def end(self, now: float, usage: Usage, *, good: bool) -> None:
        """The request is over; `good`: with a whole answer whose status is below 400."""


Meters = Callable[[Request, int, float], Meter]
"""Called with a request, the bytes of its body, and when it arrived."""
