"""One request's charge on one life of an engine, and the sums of that life.

Methods of a life keep its sums equal to those of its reservations; nothing else changes them.
"""

from collections import deque
from dataclasses import dataclass, field

from epp.framework import Incarnation

from .pace import Paces
from .reports import LoadReport


@dataclass(frozen=True, slots=True)
class Sums:
    """Absolute sums of reservations on one life."""

    requests: int = 0
    pending: int = 0
    prefill_tokens: int = 0
    decode_blocks: int = 0

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(
            self.requests + other.requests,
            self.pending + other.pending,
            self.prefill_tokens + other.prefill_tokens,
            self.decode_blocks + other.decode_blocks,
        )


NONE = Sums()


@dataclass(slots=True, eq=False)
class Reservation:
    id: str
    life: "Life"
    prefill_tokens: int
    decode_blocks: int
    has_writer: bool
    born_at: float
    ahead_tokens: int = 0
    """Prefill tokens charged there when it came, itself included; 0: they teach nothing."""
    headers_at: float | None = None
    first_at: float | None = None
    pending: bool = True
    shown: bool = False
    """A load report shows it, so that its decode blocks are no longer ours to count."""
    estimated: bool = False
    waits_for_done: bool = False
    deadline: float | None = None
    drain_start: float = 0.0
    drain_end: float = 0.0
    ended: bool = False


@dataclass(slots=True, eq=False)
class Life:
    incarnation: Incarnation
    report: LoadReport | None = None
    report_at: float = 0.0
    writer: bool = False
    requests: dict[str, Reservation] = field(default_factory=dict)
    pending: int = 0
    prefill_tokens: int = 0
    decode_blocks: int = 0
    others: Sums = NONE
    """What other replicas have reserved here, by their word."""
    others_at: float = 0.0
    """When that changed last."""
    others_speed: float = 0.0
    """Prompt tokens of theirs that the engine has worked off in each second since."""
    unshown: list[Reservation] = field(default_factory=list)
    """Those that the next report shows."""
    draining: deque[Reservation] = field(default_factory=deque)
    """Estimated prefills, in the order in which the engine works them off."""
    pace: Paces = field(default_factory=Paces)

    @property
    def sums(self) -> Sums:
        """Of our own."""
        return Sums(len(self.requests), self.pending, self.prefill_tokens, self.decode_blocks)

    def prefilled(self, held: Reservation) -> None:
        """Its prefill is over."""
        if held.pending:
            held.pending = False
            self.pending -= 1
            self.prefill_tokens -= held.prefill_tokens

    def show(self, held: Reservation) -> None:
        """The engine's own report counts its blocks."""
        if not held.shown:
            held.shown = True
            self.decode_blocks -= held.decode_blocks

    def await_report(self, held: Reservation) -> None:
        """The next report that is newer than its beginning shows it."""
        if held.shown:
            return
        self.unshown.append(held)
        if len(self.unshown) > 64 + 2 * len(self.requests):  # no report came to empty it
            alive = {other.id: other for other in self.unshown if not other.ended}
            self.unshown = list(alive.values())

    def drain(self, held: Reservation, speed: float) -> None:
        """Let its prefill end by estimate, after the others that drain here."""
        while self.draining and self.draining[-1].ended:
            self.draining.pop()
        start = held.headers_at or 0.0
        if self.draining:
            start = max(start, self.draining[-1].drain_end)
        held.drain_start = start
        held.drain_end = start + held.prefill_tokens / speed
        self.draining.append(held)

    def drained(self, now: float) -> list[Reservation]:
        """Take out those whose prefill must have ended by this time."""
        out: list[Reservation] = []
        while self.draining and (self.draining[0].ended or self.draining[0].drain_end <= now):
            held = self.draining.popleft()
            self.prefilled(held)
            if not held.ended:
                out.append(held)
        return out

    def hear(self, others: Sums, speed: float, now: float) -> bool:
        """Take the word of the other replicas; false where it is the same as before. From then on
        the engine works off their prompts at this speed."""
        if others == self.others:
            return False
        self.others, self.others_at, self.others_speed = others, now, speed
        return True

    def blocks_since(self, at: float) -> float:
        """In use on average from then on; where the engine does not say so, our reservations."""
        said = self.pace.in_use.mean_since(at)
        return float(self.decode_blocks) if said is None else said

    def remaining_elsewhere(self, now: float) -> int:
        """Prefill tokens of the others, less what the engine will have worked off since they said
        so: they say when a prompt is done, not how far it is."""
        if not self.others.prefill_tokens:
            return 0
        done = int(max(0.0, now - self.others_at) * self.others_speed)
        return max(0, self.others.prefill_tokens - done)

    def remaining_prefill(self, now: float) -> int:
        """Prefill tokens less what the first draining one has worked off by this time."""
        if not self.draining:
            return self.prefill_tokens
        held = next((held for held in self.draining if held.pending), None)
        if held is None or now <= held.drain_start:
            return self.prefill_tokens
        share = (now - held.drain_start) / (held.drain_end - held.drain_start)
        return self.prefill_tokens - min(held.prefill_tokens, int(held.prefill_tokens * share))
