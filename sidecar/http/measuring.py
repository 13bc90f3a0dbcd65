"""Begins to measure a request, and asks its engine for what is to be measured."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass

from epp.answers import AnswerMetrics

from .asking import ASKABLE, MEASURED, asked, with_usage
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
        if len(body) <= INLINE_BYTES:
            return self.begin_at_once(request, exchange, body)
        path = request.path
        if not _counts(request, path):
            return body
        read = await asyncio.to_thread(_read, body, self._of_stream(path))
        return self._began(exchange, body, *read)

    def begin_at_once(self, request: Incoming, exchange: Exchange, body: bytes) -> bytes:
        """The same for a body of `INLINE_BYTES` at most."""
        path = request.path
        if not _counts(request, path):
            return body
        return self._began(exchange, body, *_read(body, self._of_stream(path)))

    def _of_stream(self, path: str) -> bool:
        return self.request_usage and path in ASKABLE

    def _began(
        self, exchange: Exchange, body: bytes, model: str | None, extended: bytes | None
    ) -> bytes:
        name = model if model is not None and model in self.served() else OTHER
        # Who the client is, and how urgent, only the picker knows.
        exchange.measured(self.metrics, (name, name, "", ""), len(body))
        if extended is None:
            return body
        exchange.hides_usage = True
        return extended


def _counts(request: Incoming, path: str) -> bool:
    """Whether a model computes the answer to it, and its body can be read."""
    if request.method != "POST" or path not in MEASURED:
        return False
    coding = request.first(b"content-encoding")
    return coding is None or coding.strip().lower() == b"identity"


def _read(body: bytes, of_stream: bool) -> tuple[str | None, bytes | None]:
    """The model's name, and the body that asks for usage besides where that has to be added."""
    said = asked(body)
    return said.model, with_usage(body, said) if of_stream and said.streams else None
