"""Interfaces that plugins implement."""

from collections.abc import Sequence
from typing import Protocol

from .types import Endpoint, Request


class Scorer(Protocol):
    """Rate every candidate between 0 (avoid) and 1 (prefer), in the order given.

    `score` runs on the request path: it must not await, block, or keep state. Every number is
    finite. An endpoint whose measure is unknown gets 0, so that it is never best by ignorance.
    The constructor is the parameter schema: keyword-only, `ValueError` for a value out of range.
    """

    def score(self, request: Request, endpoints: Sequence[Endpoint], /) -> Sequence[float]: ...
