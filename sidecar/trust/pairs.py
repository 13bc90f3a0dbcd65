"""Compares this engine with each prefill pod before the first prompt goes there.

Both are asked for their pages once, and again after `KEPT_S`, or sooner when a leg to that pod has
failed, for it may be another engine by then. Requests that come meanwhile wait for the same answer,
`ASK_S` at most. Who does not answer is not refused.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sidecar.http.client import Answer, Call, Upstream, whole
from sidecar.http.refusals import ENGINE_GARBLED, LegError
from sidecar.transfer.targets import Target

from .traits import Traits, difference, read

ASK_S = 2.0
KEPT_S = 300.0
"""How long an answer holds."""
UNKNOWN_S = 10.0
"""How long an answer holds that told nothing, or a difference, which somebody may be mending."""
MAX_PAGE = 8 << 20
MAX_PODS = 1024
"""Pods that are remembered, those used last."""


@dataclass(slots=True)
class _Known:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    until: float = float("-inf")
    traits: Traits = field(default_factory=Traits)
    compared: tuple[Traits, Traits, str | None] | None = None
    """This engine's traits and those, and how they differ."""

    def difference(self, ours: Traits) -> str | None:
        known = self.compared
        if known is None or known[0] is not ours or known[1] is not self.traits:
            known = self.compared = (ours, self.traits, difference(ours, self.traits))
        return known[2]


@dataclass(slots=True, kw_only=True)
class Pairs:
    """One for a sidecar."""

    upstream: Upstream
    page: str
    """Path of the engines' metrics page."""
    clock: Callable[[], float]
    max_pods: int = MAX_PODS
    _own: _Known = field(default_factory=_Known, init=False)
    _pods: OrderedDict[Target, _Known] = field(default_factory=OrderedDict, init=False)

    def __len__(self) -> int:
        """Pods that are remembered."""
        return len(self._pods)

    def forget(self, target: Target) -> None:
        """It may be another engine the next time."""
        known = self._pods.get(target)
        if known is not None:
            known.until = self._own.until = float("-inf")

    async def differences(self, targets: Sequence[Target]) -> list[str | None]:
        """For each target why no KV may come from there, or None."""
        return [await self._difference(target) for target in targets]

    def known(self, targets: Sequence[Target]) -> list[str | None] | None:
        """The same where nobody has to be asked; None where somebody has."""
        now, found = self.clock(), []
        if now >= self._own.until:
            return None
        for target in targets:
            known = self._pods.get(target)
            if known is None or now >= known.until:
                return None
            self._pods.move_to_end(target)
            found.append(known.difference(self._own.traits))
        return found

    async def _difference(self, target: Target) -> str | None:
        known = self._pods.setdefault(target, _Known())
        self._pods.move_to_end(target)
        if len(self._pods) > self.max_pods:
            self._pods.popitem(last=False)
        ours = await self._traits(self._own, None)
        reason = difference(ours, await self._traits(known, target))
        if reason is not None:
            known.until = min(known.until, self.clock() + UNKNOWN_S)
            self._own.until = min(self._own.until, known.until)
        return reason

    async def _traits(self, known: _Known, target: Target | None) -> Traits:
        if self.clock() < known.until:
            return known.traits
        async with known.lock:
            if self.clock() >= known.until:
                known.traits = await self._asked(target)
                told = known.traits != Traits()
                known.until = self.clock() + (KEPT_S if told else UNKNOWN_S)
            return known.traits

    async def _asked(self, target: Target | None) -> Traits:
        """What an engine tells within the time; nothing where one of its pages is late."""
        try:
            async with asyncio.timeout(ASK_S):
                paths = ("/version", "/v1/models", self.page)
                return read(*[await self._get(path, target) for path in paths])
        except TimeoutError:
            return Traits()

    async def _get(self, path: str, target: Target | None) -> bytes:
        """A page's body; empty where there is none."""
        try:
            answer = await self._answer(path, target)
            try:
                body = await whole(answer, MAX_PAGE, LegError(ENGINE_GARBLED))
            finally:
                answer.close()
        except LegError:
            return b""
        return body if answer.head.status == 200 else b""

    async def _answer(self, path: str, target: Target | None) -> Answer:
        call = Call("GET", path, [], None)
        upstream = self.upstream
        return await (upstream.send(call) if target is None else upstream.send_to(target, call))
