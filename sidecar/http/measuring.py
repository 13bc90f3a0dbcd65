"""Begins to measure a request, and asks its engine for what is to be measured."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass

from epp.answers import AnswerMetrics
from sidecar.bodies import api_of

from .asking import MEASURED, asked, with_usage
from .exchange import Exchange
from .incoming import Incoming
from .intake import INLINE_BYTES

OTHER = "other"
"""Label of models that the engine does not serve, as far as is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """One for a sidecar."""

    metrics: AnswerMetrics
    served: Callable[[], Collection[str]]
    """Names of the engine's models at present: the only ones that become labels."""
    request_usage: bool = True
    """Ask for the usage of streams whose clients did not; they do not see it."""

    async def begin(self, request: Incoming, exchange: Exchange, body: bytes) -> bytes:
        """The body as the engine gets it; the exchange is measured from here on, if it counts."""
        path = request.path
        if request.method != "POST" or path not in MEASURED:
            return body
        if (request.value("content-encoding") or "identity").strip().lower() != "identity":
            return body
        of_stream = self.request_usage and api_of(path) is not None
        if len(body) <= INLINE_BYTES:
            model, extended = _read(body, of_stream)
        else:
            model, extended = await asyncio.to_thread(_read, body, of_stream)
        name = model if model is not None and model in self.served() else OTHER
        # Who the client is, and how urgent, only the picker knows.
        exchange.measured(self.metrics, (name, name, "", ""), len(body))
        if extended is None:
            return body
        exchange.hides_usage = True
        return extended


def _read(body: bytes, of_stream: bool) -> tuple[str | None, bytes | None]:
    """The model's name, and the body that asks for usage besides where that has to be added."""
    said = asked(body)
    return said.model, with_usage(body, said) if of_stream and said.streams else None
