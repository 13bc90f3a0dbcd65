"""What a decision needs of its neighbours: the state path behind it, the observers beside it."""

from typing import Protocol

from epp.errors import Refusal
from epp.framework import Decision, Endpoint, EndpointId, Request, Rung


class Pool(Protocol):
    """The state path as a decision sees it; implemented by `epp.state.pool.PoolState`.

    Times are monotonic seconds. Nothing waits; calls for requests that are not known do nothing.
    """

    def candidates(
        self, keys: tuple[int, ...], *, block_tokens: int, prompt_tokens: int, now: float
    ) -> list[Endpoint]:
        """Ready endpoints with load and match."""

    def ready(self, now: float) -> list[Endpoint]:
        """Ready endpoints with load, without match."""

    def rung(self, endpoint: EndpointId, now: float) -> Rung: ...
    def charge(
        self, endpoint: Endpoint, request: Request, now: float, *, prefill: Endpoint | None = None
    ) -> None:
        """Put a decision's load and predictions on the destination, and on who prefills for it."""

    def response_headers(self, request_id: str, status: int, now: float) -> None: ...
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

    def answered(self, request: Request, status: int, *, as_told: bool) -> None:
        """The answer began. `as_told` is False when another endpoint than the first served it."""
