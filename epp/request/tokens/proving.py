"""Sees to it that exact tokens are the engines' own, and steps down where they are not.

Tokens made here are compared with an engine's once for each model, when they are first used; after
that the watch tells. Each step down is one warning, with the first token that differs where that is
known, and shows in a gauge.
"""

from collections.abc import Awaitable, Callable

import structlog

from epp.request.apis.prompt import Fields

from .asking import Spawn
from .comparing import Difference, Local, compared, difference
from .standing import Standing, Standings, Step
from .tokenised import UnrenderableError
from .watch import Life, Prompt, Shows, Watch

MAX_COMPARISONS = 5
"""Times that engines are asked whether their tokens are ours, where none answers."""

Locals = Callable[[str], Local | None]
"""Who makes the tokens of a model here, if anybody does."""

Ids = Callable[[str, Fields], Awaitable[bytes | None]]
"""What an engine makes of a model's prompt; None where none answers."""

log = structlog.get_logger(__name__)


class Proving:
    """Owned by `Tokens`. Belongs to one event loop."""

    def __init__(
        self,
        *,
        local: Locals | None,
        ids: Ids | None,
        shows: Shows,
        life: Life,
        spawn: Spawn,
        clock: Callable[[], float],
    ) -> None:
        self._local = local
        self._ids = ids
        self._spawn = spawn
        self._clock = clock
        self.best = Step.ESTIMATE if ids is None else Step.ENGINE
        if local is not None:
            self.best = Step.LOCAL
        self._standings = Standings(self.best)
        self._comparing: set[str] = set()
        self.watch = Watch(shows, self._judged, life)
        self.missed = 0
        """Prompts whose blocks did not show up where they went."""

    def step(self, model: str) -> Step:
        """The way to the tokens of a model."""
        return self._standings.of(model).at(self._clock())

    def local(self, model: str) -> Local | None:
        """Who makes them here. The first call for a model has them compared, beside everything."""
        local = self._local(model) if self._local is not None else None
        standing = self._standings.of(model)
        waits = not standing.settled and model not in self._comparing
        if local is not None and self._ids is not None and waits:
            self._comparing.add(model)
            self._spawn(self._settle(model, local, standing, self._ids))
        return local

    def below(self) -> dict[Step, int]:
        """Models whose tokens were found wrong, by the way that is taken now."""
        return self._standings.below()

    async def _settle(self, model: str, local: Local, standing: Standing, ids: Ids) -> None:
        try:
            found = await compared(local, lambda fields: ids(model, fields))
        finally:
            self._comparing.discard(model)
        if isinstance(found, Difference):
            standing.settled = True
            standing.down(self._clock())
            self._warn(model, standing, found, "the engine's /tokenize says otherwise")
        elif found:
            standing.settled = True
            log.info("tokens are the engine's own", model=model)
        else:
            standing.attempts += 1
            standing.settled = standing.attempts >= MAX_COMPARISONS

    def _judged(self, prompt: Prompt, shown: bool, now: float) -> None:
        standing = self._standings.of(prompt.model)
        if prompt.step is not standing.step:
            return
        self.missed += not shown
        if standing.judge(shown, now):
            self._spawn(self._tell(prompt, standing))

    async def _tell(self, prompt: Prompt, standing: Standing) -> None:
        """Warn of tokens whose blocks do not show up, after a look at what the engine makes."""
        found = await self._difference(prompt) if prompt.step is Step.LOCAL else None
        self._warn(prompt.model, standing, found, "blocks do not show up where prompts went")

    async def _difference(self, prompt: Prompt) -> Difference | None:
        """Where an engine's tokens of a prompt begin to differ; None where nobody can tell."""
        local = self._local(prompt.model) if self._local is not None else None
        if local is None or self._ids is None or prompt.fields is None:
            return None
        theirs = await self._ids(prompt.model, prompt.fields)
        if theirs is None:
            return None
        try:
            return difference(local.ids(prompt.fields), theirs)
        except UnrenderableError:
            return None

    def _warn(self, model: str, standing: Standing, found: Difference | None, why: str) -> None:
        told = {"model": model, "why": why, "from_now_on": standing.step.name.lower()}
        if found is not None:
            told |= {"first_at": str(found.position), "ours": str(found.ours)}
            told |= {"theirs": str(found.theirs)}
        if standing.warned:
            log.info("tokens are still not the engine's", **told)
        else:
            log.warning("tokens are not the engine's: prefixes cannot be followed", **told)
        standing.warned = True
