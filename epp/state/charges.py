"""What we remember of a decision until the sidecar has said how it went. Bounded, pure."""

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass

from epp.framework import Endpoint, EndpointId, Match, Source

from .records import Done


@dataclass(frozen=True, slots=True)
class Early:
    """What a writer said of a request of which we do not know that it serves it."""

    endpoint: EndpointId
    done: Done | None = None
    """None: only that the first byte of the answer came by."""


@dataclass(slots=True, eq=False)
class Charge:
    """One decision: its endpoint with the match that it counted on."""

    endpoint: Endpoint
    prefill: Endpoint | None = None
    """Who was to compute the prompt in its place, with the match that was counted on there."""
    first_seen: bool = False
    """The first byte of the answer was seen."""
    keys: tuple[int, ...] = ()
    """Blocks that `endpoint` will hold once they were computed at `prefill`."""
    early: Early | None = None
    """The last word of another endpoint, for the case that it turns out to serve the request."""

    @property
    def predicted_tokens(self) -> int:
        """Prompt tokens that were expected to be cached where the prompt is computed."""
        return (self.prefill or self.endpoint).match.tokens


class Charges:
    """Open decisions, and ended ones for whose `done` we wait a little.

    At most `limit` together; the oldest ended one makes room first. Of their keys `max_keys` at
    most are kept, in all; a decision beyond that goes without.
    """

    def __init__(
        self, *, limit: int = 100_000, linger_s: float = 60.0, max_keys: int = 1_000_000
    ) -> None:
        self._limit = limit
        self._max_keys = max_keys
        self._keys = 0
        self._linger_s = linger_s
        self._open: OrderedDict[str, Charge] = OrderedDict()
        self._ended: OrderedDict[str, tuple[float, Charge]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open) + len(self._ended)

    def add(
        self,
        request_id: str,
        endpoint: Endpoint,
        prefill: Endpoint | None = None,
        keys: tuple[int, ...] = (),
    ) -> None:
        self.drop(request_id)
        while len(self) >= self._limit:
            self.drop(next(iter(self._ended or self._open)))
        held = self._open[request_id] = Charge(endpoint, prefill)
        if self._keys + len(keys) <= self._max_keys:
            held.keys = keys
            self._keys += len(keys)

    def take_keys(self, held: Charge) -> tuple[int, ...]:
        """The keys of one decision, once."""
        keys, held.keys = held.keys, ()
        self._keys -= len(keys)
        return keys

    def get(self, request_id: str) -> Charge | None:
        held = self._open.get(request_id)
        if held is None and request_id in self._ended:
            held = self._ended[request_id][1]
        return held

    def end(self, request_id: str, now: float, *, linger: bool) -> None:
        """The request is over. `linger`: a sidecar's `done` may still come."""
        held = self._open.pop(request_id, None)
        if held is None:
            return
        self.take_keys(held)
        if linger:
            self._ended[request_id] = (now, held)

    def drop(self, request_id: str) -> None:
        held = self._open.pop(request_id, None)
        if held is not None:
            self.take_keys(held)
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


def leg_of(request_id: str) -> str:
    """Name of a split request's charge where it is prefilled; no writer can name it."""
    return f"{request_id}/prefill"


def medium_of(request_id: str, turn: int) -> str:
    """Name of a request's charge where media of it are encoded, one name for each endpoint."""
    return f"{request_id}/encode/{turn}"


class Unconfirmed:
    """Predictions of prompts that are computed, until the engine's next events tell the truth.

    Each waits `grace_s` at most, and at most `limit` wait for one endpoint, the latest.
    """

    def __init__(self, *, grace_s: float, limit: int) -> None:
        self._grace_s = grace_s
        self._limit = limit
        self._waiting: dict[EndpointId, deque[tuple[float, str]]] = {}

    def add(self, endpoint: EndpointId, name: str, now: float) -> str | None:
        """Returns the prediction that made room, if one had to."""
        waiting = self._waiting.setdefault(endpoint, deque())
        waiting.append((now + self._grace_s, name))
        return waiting.popleft()[1] if len(waiting) > self._limit else None

    def take(self, endpoint: EndpointId) -> list[str]:
        """All that wait for this endpoint; they wait no longer."""
        return [name for _, name in self._waiting.pop(endpoint, ())]

    def due(self, now: float) -> list[str]:
        """Those that have waited long enough; they wait no longer."""
        found: list[str] = []
        for waiting in self._waiting.values():
            while waiting and waiting[0][0] <= now:
                found.append(waiting.popleft()[1])
        return found


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


class Trusts:
    """The trust of each endpoint."""

    def __init__(self) -> None:
        self._by_endpoint: dict[EndpointId, Trust] = {}
        self._changed: set[EndpointId] = set()

    def __len__(self) -> int:
        return len(self._by_endpoint)

    def of(self, endpoint: EndpointId) -> float:
        return self._by_endpoint.get(endpoint, _UNTRIED).value

    def observe(self, endpoint: EndpointId, match: Match, actual: int) -> None:
        """A decision counted on `match`; `actual` prompt tokens were cached."""
        trust = self._by_endpoint.setdefault(endpoint, Trust())
        trust.observe(match.source, match.tokens, actual)
        self._changed.add(endpoint)

    def forget(self, endpoint: EndpointId) -> None:
        self._by_endpoint.pop(endpoint, None)
        self._changed.add(endpoint)

    def changed(self) -> list[EndpointId]:
        """Endpoints whose trust may be another than when this was called last."""
        found = list(self._changed)
        self._changed.clear()
        return found


_UNTRIED = Trust()
