"""What other pods do for a request before the local engine sees it, in the picker's words.

Its media may be encoded by others; then its prompt may be computed by another. Whatever stands
against one of the two is counted by its reason, and the local engine does that part.
"""

from collections.abc import Callable
from dataclasses import dataclass

from epp.protocol import ENCODERS, KV_SOURCE, PREFILLER
from sidecar.encoding.metrics import EncodeMetrics
from sidecar.encoding.stage import Encoders
from sidecar.http.exchange import Exchange
from sidecar.http.incoming import Incoming
from sidecar.http.passage import Passage
from sidecar.trust.named import Judged, Trust

from .handover import Handover
from .reading import Visit, read
from .split import Later, Splitter
from .targets import Target

EC_OFF = "ec-off"
"""Encoding by others is not set up here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """One for a sidecar."""

    trust: Trust
    splitter: Splitter
    encoders: Encoders | None
    """None: every engine encodes what it computes."""
    metrics: EncodeMetrics
    wall_s: Callable[[], float]

    async def serve(
        self, request: Incoming, exchange: Exchange, passage: Passage, body: bytes
    ) -> bytes | None:
        """The body that the local engine must serve alone; None when the client was answered.

        Raises CancelledError for a client that left.
        """
        encodes, splits = bool(request.values(ENCODERS)), bool(request.values(PREFILLER))
        if not (encodes or splits or request.values(KV_SOURCE)):
            return body
        visit = Visit(request, exchange, passage)
        judged = self.trust.judged(request, self.wall_s())
        if encodes:
            encoded = await self._encoded(visit, body, judged)
            if encoded is None:
                return None
            body = encoded
        source = self._source(judged) if request.values(KV_SOURCE) else None
        if splits and await self.splitter.serve(visit, body, judged, source):
            return None
        return body if source is None else await self.splitter.alone(request, body, source)

    def at_once(self, visit: Visit, body: bytes) -> Handover | Later | None:
        """A handoff that can begin, of a request that asks for a split and for nothing else, with a
        body of `INLINE_BYTES` at most; None where the local engine must serve it alone."""
        return self.splitter.at_once(visit, body, self.trust.judged(visit.request, self.wall_s()))

    def over(self, handover: Handover) -> None:
        """One that was begun has ended."""
        self.splitter.over(handover)

    def _source(self, judged: Judged) -> Target | None:
        """Who holds KV of the prompt, as far as that is believed."""
        found = judged.named(KV_SOURCE)
        return None if isinstance(found, str) else found[0]

    async def _encoded(self, visit: Visit, body: bytes, judged: Judged) -> bytes | None:
        """The body with what encoders say; None when the client was answered."""
        encoders = self.encoders
        if encoders is None:
            return self._not_encoded(body, EC_OFF)
        targets = encoders.asked(judged)
        if isinstance(targets, str):
            return self._not_encoded(body, targets)
        found = await read(visit.request, body)
        if isinstance(found, str):
            return self._not_encoded(body, found)
        api, content = found
        return await encoders.encode(visit, content, api, targets)

    def _not_encoded(self, body: bytes, reason: str) -> bytes:
        self.metrics.encodes.labels(reason).inc()
        return body
