"""What we remember of a decision until the sidecar has said how it went. Bounded, pure."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from epp.framework import Endpoint, Source


@dataclass(slots=True, eq=False)
class Charge:
    """One decision: its endpoint with the match that it counted on."""

    endpoint: Endpoint
    first_seen: bool = False
    """The first byte of the answer was seen."""

    @property
    def predicted_tokens(self) -> int:
        return self.endpoint.match.tokens


class Charges:
    """Open decisions, and ended ones for whose `done` we wait a little.

    At most `limit` together; the oldest ended one makes room first.
    """

    def __init__(self, *, limit: int = 100_000, linger_s: float = 60.0) -> None:
        self._limit = limit
        self._linger_s = linger_s
        self._open: OrderedDict[str, Charge] = OrderedDict()
        self._ended: OrderedDict[str, tuple[float, Charge]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open) + len(self._ended)

    def add(self, request_id: str, endpoint: Endpoint) -> None:
        while len(self) >= self._limit:
            if self._ended:
                self._ended.popitem(last=False)
            else:
                self._open.popitem(last=False)
        self._open[request_id] = Charge(endpoint)

    def get(self, request_id: str) -> Charge | None:
        held = self._open.get(request_id)
        if held is None and request_id in self._ended:
            held = self._ended[request_id][1]
        return held

    def end(self, request_id: str, now: float, *, linger: bool) -> None:
        """The request is over. `linger`: a sidecar's `done` may still come."""
        held = self._open.pop(request_id, None)
        if held is not None and linger:
            self._ended[request_id] = (now, held)

    def drop(self, request_id: str) -> None:
        self._open.pop(request_id, None)
        self._ended.pop(request_id, None)

    def prune(self, now: float) -> None:
        """Forget those whose `done` did not come in time."""
        for request_id in list(self._due(now)):
            del self._ended[request_id]

    def _due(self, now: float) -> Iterator[str]:
        for request_id, (at, _) in self._ended.items():
            if now - at < self._linger_s:
                return
            yield request_id


class Trust:
    """How much of what we predicted to be cached turned out to be, 0 to 1: a moving average."""

    __slots__ = ("_weight", "value")

    def __init__(self, prior: float = 0.9, weight: float = 0.1) -> None:
        self.value = prior
        self._weight = weight

    def observe(self, source: Source, predicted: int, actual: int) -> None:
        """Only predictions teach: precise matches come from the engine itself."""
        if source is Source.PREDICTED and predicted > 0:
            sample = min(1.0, max(0, actual) / predicted)
            self.value += self._weight * (sample - self.value)
