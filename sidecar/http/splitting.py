"""A split request without a task: its body is here, and its handoff tells when it is over."""

import asyncio
from collections.abc import Coroutine
from typing import Protocol

from sidecar.proxy import Outcome
from sidecar.transfer.handover import Handover

from .client import NearClient
from .direct import Over
from .exchange import Exchange
from .passage import Passage


class Desk(Protocol):
    """What a `Splitting` needs of the service."""

    def split(self, splitting: "Splitting") -> None:
        """It is over, and the journal has to be told."""

    def alone(self, splitting: "Splitting") -> Coroutine[None, None, None]:
        """It is a task's from here on, which lets the local engine serve the request alone."""


class Splitting:
    """One exchange."""

    __slots__ = ("_begins", "_desk", "_over", "body", "client", "exchange", "handover", "passage",
                 "size")  # fmt: skip

    def __init__(
        self,
        desk: Desk,
        client: NearClient,
        exchange: Exchange,
        passage: Passage,
        handover: Handover,
        *,
        body: bytes,
        size: int,
        over: Over,
    ) -> None:
        """`body` is as the local engine gets it alone, `size` of the client's own."""
        self.client = client
        self.exchange = exchange
        self.passage = passage
        self.handover = handover
        self.body = body
        self.size = size
        self._desk = desk
        self._over = over
        self._begins = False

    def begin(self) -> None:
        self._begins = True
        self.handover.begin(self._ended)
        self._begins = False

    def cancel(self) -> None:
        """The client has left."""
        self.handover.leave()

    def cut(self) -> None:
        """The sidecar ends."""
        self.handover.cut()

    def sweep(self, now: float, idle_s: float, total_s: float) -> None:
        """Its handoff has limits of its own."""

    def _ended(self) -> None:
        if self._begins:  # whoever begins it has not got it yet
            asyncio.get_running_loop().call_soon(self._end)
        else:
            self._end()

    def _end(self) -> None:
        handover = self.handover
        if handover.error is not None and not self.passage.begun:
            self._over(self._desk.alone(self))
            return
        if handover.error is not None:
            self.exchange.outcome = Outcome.ENGINE_ERROR
            self.client.cut()
        elif not handover.answered:
            self.exchange.outcome = Outcome.CLIENT_GONE
        self._desk.split(self)
        self._over(None)
