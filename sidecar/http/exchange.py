"""What is known about one exchange while it lasts."""

from aiohttp import web

from epp.bodies.usage import ResponseWatch, Unknown, Usage
from epp.protocol import DECISION_ID, PREDICTED_CACHED_TOKENS
from sidecar.proxy import Ended, Outcome

from . import headers, refusals
from .refusals import Refused


class Exchange:
    """Collects what `Ended` reports. Until something else is known, the client has left."""

    __slots__ = ("_began", "_first_at", "_watch", "decision_id", "outcome", "predicted", "status")

    def __init__(self, request: web.BaseRequest, now: float) -> None:
        self._began = now
        self._first_at: float | None = None
        self._watch: ResponseWatch | None = None
        self.decision_id = headers.decision_id(request.headers.get(DECISION_ID))
        self.predicted = headers.token_count(request.headers.get(PREDICTED_CACHED_TOKENS))
        self.outcome = Outcome.CLIENT_GONE
        self.status = 0

    def refuse(self, refused: Refused, outcome: Outcome = Outcome.ENGINE_ERROR) -> web.Response:
        """The exchange ends with an answer of our own."""
        self.outcome, self.status = outcome, refused.status
        return refusals.answer(refused)

    def answered(self, status: int, content_type: str, content_encoding: str) -> None:
        """The engine's headers are here."""
        self.status = status
        self._watch = ResponseWatch(content_type, content_encoding)

    def piece(self, data: bytes, now: float) -> float | None:
        """The next bytes of the body; returns the time to first byte when these are the first."""
        assert self._watch is not None
        self._watch.feed(data)
        if self._first_at is not None:
            return None
        self._first_at = now
        return now - self._began

    def completed(self) -> None:
        """The whole answer has been handed to the client's connection."""
        self.outcome = Outcome.OK if self.status < 400 else Outcome.ENGINE_ERROR

    def ended(self, now: float) -> Ended:
        """The exchange is over."""
        usage = self._watch.finish() if self._watch else Usage()
        return Ended(
            decision_id=self.decision_id,
            outcome=self.outcome,
            status=self.status,
            usage=usage,
            usage_unknown=self._watch.unknown if self._watch else Unknown.ABSENT,
            predicted_cached_tokens=self.predicted,
            ttft_s=None if self._first_at is None else self._first_at - self._began,
            duration_s=now - self._began,
        )
