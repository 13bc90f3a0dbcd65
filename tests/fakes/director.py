"""A director whose decisions the test writes, and a progress that remembers what it was told."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from epp.bodies.usage import Usage
from epp.errors import Refusal
from epp.request.exchange import Arrival, Outcome, Route


@dataclass(slots=True)
class RecordingProgress:
    """Keeps each call as a short tuple, in order."""

    events: list[tuple[object, ...]] = field(default_factory=list[tuple[object, ...]])

    answer_headers: tuple[tuple[str, str], ...] = ()
    """What it asks to be set in the answer."""

    def response_headers(
        self, status: int, served: str | None, *, streaming: bool = False
    ) -> Sequence[tuple[str, str]]:
        self.events.append(("headers", status, served))
        return self.answer_headers

    def body(self, size: int) -> None:
        if size:
            self.events.append(("body", size))

    def usage(self, usage: Usage) -> None:
        self.events.append(("usage", usage))

    def finished(self) -> None:
        self.events.append(("finished",))

    def reset(self, *, answered: bool) -> None:
        self.events.append(("reset", answered))

    @property
    def ends(self) -> list[tuple[object, ...]]:
        """The calls that end a request: one, never more."""
        return [event for event in self.events if event[0] in ("finished", "reset")]


def route(
    destination: str | None,
    *,
    progress: RecordingProgress | None = None,
    set_headers: tuple[tuple[str, str], ...] = (),
    remove_headers: tuple[str, ...] = (),
    body: bytes | None = None,
) -> Route:
    """A route with a recording progress."""
    return Route(
        destination=destination,
        progress=RecordingProgress() if progress is None else progress,
        set_headers=set_headers,
        remove_headers=remove_headers,
        body=body,
    )


@dataclass(slots=True)
class ScriptedDirector:
    """Decides by `script`; remembers arrivals and the progress of each route."""

    script: Callable[[Arrival], Outcome | Awaitable[Outcome]]
    arrivals: list[Arrival] = field(default_factory=list[Arrival])
    progresses: list[RecordingProgress] = field(default_factory=list[RecordingProgress])

    async def decide(self, arrival: Arrival) -> Outcome:
        self.arrivals.append(arrival)
        outcome = self.script(arrival)
        if not isinstance(outcome, (Route, Refusal)):
            outcome = await outcome
        if isinstance(outcome, Route) and isinstance(outcome.progress, RecordingProgress):
            self.progresses.append(outcome.progress)
        return outcome
