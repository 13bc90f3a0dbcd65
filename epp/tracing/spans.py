"""What was done for a request, and when: spans, made here and told by somebody else. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from .context import Chance, SpanContext

Attribute = str | int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Something that is over. Times are those of the wall clock, in seconds."""

    name: str
    context: SpanContext
    parent: str | None
    """Id of the span that caused it; None at the beginning of a trace."""
    began_s: float
    ended_s: float
    attributes: Mapping[str, Attribute]
    failure: str | None = None
    """The stable reason why it did not come to what it was meant for."""


class Listener(Protocol):
    """Who is told of spans. Returns at once and never fails."""

    def take(self, span: Span, /) -> None: ...


@dataclass(slots=True, kw_only=True)
class Tracer:
    """Makes the spans of one process."""

    rng: Chance
    wall_s: Callable[[], float]
    share: float
    """Of the traces that begin here, how many are sampled, 0 to 1."""
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    """Of the topmost span of each request."""
    listener: Listener | None = None
    """None records nothing: requests then keep the place in their trace that they came with."""


@dataclass(slots=True)
class Running:
    """A span that is not over. `end` it once."""

    tracer: Tracer
    name: str
    context: SpanContext
    parent: str | None
    attributes: dict[str, Attribute]
    _began_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._began_s = self.tracer.wall_s()

    def below(self, name: str, **attributes: Attribute) -> "Running":
        """A span that this one causes, beginning now."""
        context = self.context.child(self.tracer.rng)
        return Running(self.tracer, name, context, self.context.span_id, attributes)

    @property
    def age_s(self) -> float:
        return max(self.tracer.wall_s() - self._began_s, 0.0)

    def end(self, failure: str | None = None) -> None:
        """It is over; whoever listens is told if the trace is recorded."""
        listener = self.tracer.listener
        if listener is None or not self.context.sampled:
            return
        listener.take(
            Span(
                name=self.name,
                context=self.context,
                parent=self.parent,
                began_s=self._began_s,
                ended_s=self._began_s + self.age_s,
                attributes=self.attributes,
                failure=failure,
            )
        )
