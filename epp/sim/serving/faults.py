"""Faults that an operator of a simulated engine switches on, and the one that hits a request.

`POST /admin/faults` replaces the whole set, so `{}` heals everything. Faults concern requests that
arrive while they are set; `health_status` concerns `/health`, `drop_event_batches` KV events.
"""

import random
from typing import Annotated

import msgspec

Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=600.0)]


class Faults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What goes wrong. Nothing by default."""

    latency_s: Seconds = 0.0
    """Wait before anything else happens with a request."""
    hang: bool = False
    """Read the request and never answer, until the client leaves."""
    hang_after_chunks: Count | None = None
    """Stop in the middle of a stream, after so many `data:` lines; the connection stays open."""
    reset_after_chunks: Count | None = None
    """Reset the connection after so many `data:` lines; 0 resets before the headers. An answer
    that is not streamed is cut in half when this is above 0."""
    status: Annotated[int, msgspec.Meta(ge=400, le=599)] | None = None
    """Answer with this status instead of computing."""
    status_share: Share = 1.0
    """Share of requests that get `status`, drawn with the engine's seed."""
    status_count: Count | None = None
    """How many requests get `status`; None is no limit."""
    health_status: Annotated[int, msgspec.Meta(ge=200, le=599)] | None = None
    """Status of `/health`."""
    prefill_offers_nothing: bool = False
    """Prefill requests end by themselves, with no parameters and nothing pinned, as if the first
    token were the last one of the answer."""
    fail_pulls: Count = 0
    """Next pulls that fail."""
    drop_event_batches: Count = 0
    """Next KV event batches that are lost on the wire; their sequence numbers are spent."""


NO_FAULTS = Faults()


class FaultBox:
    """The faults in force and what is left of the counted ones."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._statuses_left: int | None = None
        self._drops_left = 0
        self._failures_left = 0
        self.active = NO_FAULTS

    def set(self, faults: Faults) -> None:
        self.active = faults
        self._statuses_left = faults.status_count
        self._drops_left = faults.drop_event_batches
        self._failures_left = faults.fail_pulls

    def status(self) -> int | None:
        """Status that the next request gets instead of an answer, if any."""
        faults = self.active
        if faults.status is None or self._statuses_left == 0:
            return None
        # A share of 1 must hit always: random() may be anything below 1.
        if self._rng.random() >= faults.status_share:
            return None
        if self._statuses_left is not None:
            self._statuses_left -= 1
        return faults.status

    def fails_pull(self) -> bool:
        """Whether the next pull fails."""
        if not self._failures_left:
            return False
        self._failures_left -= 1
        return True

    def drops_batch(self) -> bool:
        """Whether the next KV event batch is lost."""
        if not self._drops_left:
            return False
        self._drops_left -= 1
        return True
