"""Which way to a model's tokens is believed, and when another is tried. Pure.

Three steps: made here from the model's files, asked of its engines, estimated from bytes. Engines
say in their events what they computed, so tokens that are not theirs come to light: their blocks
never show up. Too many of these in a row of requests, or a comparison that fails, is a step down.
After a while the better way is tried again.
"""

from collections import OrderedDict, deque
from enum import IntEnum

WINDOW = 50
"""Requests that are judged together."""
MOST_MISSED = 2
"""Of these may be missed: 5 percent, for blocks are evicted too."""
PAUSE_S = 600.0
"""After which a better way is tried again."""
MAX_MODELS = 256
"""Models that are remembered, the least recently used forgotten first."""


class Step(IntEnum):
    LOCAL = 0
    ENGINE = 1
    ESTIMATE = 2


class Standing:
    """Of one model."""

    def __init__(self, best: Step) -> None:
        self._best = best
        self._until = 0.0
        self._shown: deque[bool] = deque(maxlen=WINDOW)
        self.step = best
        self.settled = False
        """Whether local tokens were compared with an engine's since they were last tried."""
        self.attempts = 0
        """Comparisons for which no engine answered."""
        self.warned = False

    def at(self, now: float) -> Step:
        """The way to take."""
        if self.step > self._best and now >= self._until:
            self.step = Step(self.step - 1)
            self._until = now + PAUSE_S
            self._shown.clear()
            self.settled, self.attempts = False, 0
        return self.step

    def judge(self, shown: bool, now: float) -> bool:
        """Whether the blocks of a request showed up where it went. True: that was one too many."""
        self._shown.append(shown)
        if shown or self._shown.count(False) <= MOST_MISSED or self.step is Step.ESTIMATE:
            return False
        self.down(now)
        return True

    def down(self, now: float) -> None:
        """The present way is not to be believed."""
        self.step = Step(min(self.step + 1, Step.ESTIMATE))
        self._until = now + PAUSE_S
        self._shown.clear()


class Standings:
    """Of all models. `best` is where a model begins."""

    def __init__(self, best: Step, max_models: int = MAX_MODELS) -> None:
        self._best = best
        self._max_models = max_models
        self._models: OrderedDict[str, Standing] = OrderedDict()

    def of(self, model: str) -> Standing:
        standing = self._models.get(model)
        if standing is None:
            standing = self._models[model] = Standing(self._best)
            if len(self._models) > self._max_models:
                self._models.popitem(last=False)
        else:
            self._models.move_to_end(model)
        return standing

    def below(self) -> dict[Step, int]:
        """Models that do not stand where they began, by their step."""
        steps = [one.step for one in self._models.values()]
        return {step: steps.count(step) for step in Step if step > self._best}
