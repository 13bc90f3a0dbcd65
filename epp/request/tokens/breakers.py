"""Stop asking a tokenizer that does not answer, and look now and then whether it is back. Pure."""

from collections import OrderedDict
from enum import Enum

ABSENT_S = 600.0
"""Until an engine is asked again for what it does not have: a new version may."""
MAX_MODELS = 256
"""Models whose breakers are kept, the least recently used forgotten first."""


class Permit(Enum):
    """Whether to ask."""

    ASK = "ask"
    PROBE = "probe"
    """Ask, but do not wait for the answer: it only tells whether the engine is back."""
    NO = "no"


class Breaker:
    """Stops asking after failures in a row; asks again once in a while, ever more rarely."""

    def __init__(
        self, *, threshold: int = 3, first_pause_s: float = 1.0, max_pause_s: float = 30.0
    ) -> None:
        self._threshold = threshold
        self._first_pause_s = first_pause_s
        self._max_pause_s = max_pause_s
        self._failures = 0
        self._pause_s = first_pause_s
        self._until: float | None = None
        self._probing = False

    @property
    def open(self) -> bool:
        return self._until is not None

    def may_ask(self, now: float) -> bool:
        """Whether `permit` would allow a question. Changes nothing."""
        return self._until is None or not (self._probing or now < self._until)

    def permit(self, now: float) -> Permit:
        if self._until is None:
            return Permit.ASK
        if not self.may_ask(now):
            return Permit.NO
        self._probing = True
        return Permit.PROBE

    def succeeded(self) -> None:
        self._failures = 0
        self._pause_s = self._first_pause_s
        self._until = None
        self._probing = False

    def absent(self, now: float) -> None:
        """Nobody will answer soon: the engine does not have what it was asked for."""
        self._failures = self._threshold
        self._until = now + ABSENT_S
        self._probing = False

    def failed(self, now: float) -> None:
        self._failures += 1
        if self._until is not None and not self._probing:
            return
        if self._failures >= self._threshold:
            if self._probing:
                self._pause_s = min(2 * self._pause_s, self._max_pause_s)
            self._until = now + self._pause_s
        self._probing = False


class Breakers:
    """One breaker per model: an unknown model must not stop the others."""

    def __init__(self, max_models: int = MAX_MODELS) -> None:
        self._max_models = max_models
        self._breakers: OrderedDict[str, Breaker] = OrderedDict()

    def of(self, model: str) -> Breaker:
        breaker = self._breakers.get(model)
        if breaker is None:
            breaker = self._breakers[model] = Breaker()
            if len(self._breakers) > self._max_models:
                self._breakers.popitem(last=False)
        else:
            self._breakers.move_to_end(model)
        return breaker

    def __len__(self) -> int:
        return len(self._breakers)
