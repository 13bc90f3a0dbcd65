"""Whether the blocks of our tokens show up where a prompt went. Pure.

Engines publish what they computed, so it costs nothing to see that they did not compute what we
think: within seconds of a prompt's first token its first blocks must have been among those of its
endpoint, which may have evicted them since. A sample of prompts is followed, those whose tokens
were made here or asked for.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from epp.errors import Refusal
from epp.framework import Decision, EndpointId, Request
from epp.request.apis.prompt import Fields

from .standing import Step

SHOWN_S = 10.0
"""Time from the first token until a block must have been seen."""
LOOK_S = 1.0
"""Time between two looks for it."""
FIRST_BLOCKS = 3
"""Blocks of which one must have been."""
MAX_PROMPTS = 128
"""Prompts that are remembered until they are decided about."""
MAX_FOLLOWED = 256
"""Requests that are followed at once."""
MAX_FIELDS_BYTES = 32 * 1024
"""Of larger prompts nobody asks later what their tokens are."""

Shows = Callable[[EndpointId, Sequence[int], float], bool | None]
"""Whether an endpoint holds one of these blocks; None where its events are not to be believed."""
Life = Callable[[EndpointId], object]
"""Which life of its engine an endpoint is in: a later one has none of the blocks before it."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One whose tokens are to be proven."""

    model: str
    step: Step
    keys: tuple[int, ...]
    fields: Fields | None


@dataclass(slots=True)
class _Followed:
    prompt: Prompt
    endpoint: EndpointId | None = None
    life: object = None
    look: float = 0.0
    due: float = 0.0
    seen: bool = False


class Watch:
    """An observer of decisions. `judged` hears of each prompt whether it showed up, and when."""

    def __init__(
        self,
        shows: Shows,
        judged: Callable[[Prompt, bool, float], None],
        life: Life = lambda _: None,
    ) -> None:
        self._shows = shows
        self._life = life
        self._judged = judged
        self._prompts: OrderedDict[int, Prompt] = OrderedDict()
        """By their first block."""
        self._followed: OrderedDict[str, _Followed] = OrderedDict()

    def __len__(self) -> int:
        return len(self._followed)

    def found(self, model: str, step: Step, keys: tuple[int, ...], fields: Fields) -> None:
        """The tokens of a prompt were found this way."""
        if not keys:
            return
        small = sum(len(raw) for _, raw in fields) <= MAX_FIELDS_BYTES
        self._prompts[keys[0]] = Prompt(model, step, keys[:FIRST_BLOCKS], fields if small else None)
        self._prompts.move_to_end(keys[0])
        if len(self._prompts) > MAX_PROMPTS:
            self._prompts.popitem(last=False)

    def decided(self, decision: Decision, request: Request, why: str, took_s: float) -> None:
        prompt = self._prompts.get(request.keys[0]) if request.exact and request.keys else None
        if prompt is None:
            return
        self._followed[request.id] = _Followed(prompt)
        if len(self._followed) > MAX_FOLLOWED:
            self._followed.popitem(last=False)

    def first_token(self, request_id: str, endpoint: EndpointId, now: float) -> None:
        """The endpoint that serves a request has computed its prompt. The first word counts.

        Who is due is judged now: where no request has a first token nothing is evicted either.
        """
        self.tick(now)
        followed = self._followed.get(request_id)
        if followed is not None and followed.endpoint is None:
            followed.endpoint, followed.due = endpoint, now + SHOWN_S
            followed.look = now + LOOK_S
            followed.life = self._life(endpoint)
            self._followed.move_to_end(request_id)

    def tick(self, now: float) -> None:
        """Look for what was not seen yet, and judge what is due."""
        for one in self._followed.values():
            if one.endpoint is not None and not one.seen and one.look <= now < one.due:
                one.look = now + LOOK_S
                one.seen = bool(self._shows(one.endpoint, one.prompt.keys, now))
        due = [
            (name, one.endpoint)
            for name, one in self._followed.items()
            if one.endpoint is not None and one.due <= now
        ]
        for name, endpoint in due:
            one = self._followed.pop(name)
            if one.life != self._life(endpoint):
                continue
            shown = one.seen or self._shows(endpoint, one.prompt.keys, now)
            if shown is not None:
                self._judged(one.prompt, shown, now)

    def refused(self, refusal: Refusal) -> None:
        """Nothing was sent."""

    def failed(self, step: str) -> None:
        """Says nothing about tokens."""

    def ignored(self, header: str) -> None:
        """Says nothing about tokens."""

    def answered(self, request: Request, status: int, *, as_told: bool) -> None:
        """Says nothing about tokens: the first of them may be far away."""

    def shadowed(self, request: Request, *, agreed: bool | None) -> None:
        """Somebody else chose; nobody tells of its first token."""
