"""Who is in the pool, which life each engine is in, and who is ready.

Membership comes from the control path and alone decides who is routable. A member is ready until
somebody who should know says otherwise: its sidecar reports that the engine takes no requests, or
its port refuses connections. A member never heard from is routable, with an unknown load.

Of two starts of one endpoint the later is another life; an earlier one is a late echo and ignored.
The same name with a new uid is another endpoint from the start, for the id holds the uid.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from epp.framework import Endpoint, EndpointId, Incarnation, Role, Rung

from .event_ports import NOTHING_SAID, EventPorts

NOT_READY_BELIEVED_S = 30.0
"""A sidecar's "not ready" is believed this long after its last word; then it is only old news."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One routable engine port, as the control path knows it."""

    id: EndpointId
    address: str
    """`ip:port`, IPv6 in brackets."""
    role: Role = Role.UNLABELLED
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    metrics_url: str | None = None
    """Page to scrape where no fresh report of a sidecar is at hand."""
    has_sidecar: bool = True
    """A sidecar stands before the engine: it reports load, first tokens and ends of requests."""
    events: EventPorts = NOTHING_SAID
    """Without a sidecar: where the engine tells what its cache holds."""


@dataclass(frozen=True, slots=True)
class ScrapeTarget:
    """A member whose metrics page is worth reading."""

    endpoint: EndpointId
    url: str
    labels: Mapping[str, str]
    """They tell the engine."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What `replace` did. `removed` are the lives that are over for us."""

    added: tuple[Member, ...] = ()
    removed: tuple[Incarnation, ...] = ()
    changed: tuple[Member, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointStatus:
    """One member for metrics and for people."""

    member: Member
    incarnation: Incarnation
    ready: bool
    rung: Rung
    blocks: int
    trust: float
    record_age_s: float | None
    events: bool
    """Its writer says that it sees the engine's KV events."""
    endpoint: Endpoint
    """As decisions see it, without a match."""
    elsewhere: int
    """Requests that other replicas have sent there and that have not ended."""


@dataclass(slots=True, eq=False)
class _Seat:
    member: Member
    incarnation: Incarnation
    row: int = 0
    """Its place among the members."""
    not_ready_since: float | None = None
    refused: bool = False


class Endpoints:
    """The members by id, and in rows.

    `version` changes with the members, with what is known of one, and with the life of one.
    """

    def __init__(self) -> None:
        self.version = 0
        self._seats: dict[EndpointId, _Seat] = {}
        self._doubtful: set[_Seat] = set()
        """Those that somebody said were not ready, whether or not that still counts."""

    def __len__(self) -> int:
        return len(self._seats)

    def __contains__(self, endpoint: EndpointId) -> bool:
        return endpoint in self._seats

    def __iter__(self) -> Iterator[Member]:
        return (seat.member for seat in self._seats.values())

    def replace(self, members: Iterable[Member], now: float) -> Changes:
        """Make this list the pool. A member that stays keeps its life and its state."""
        wanted = {member.id: member for member in members}
        removed = [seat.incarnation for id_, seat in self._seats.items() if id_ not in wanted]
        for incarnation in removed:
            self._doubtful.discard(self._seats.pop(incarnation.endpoint))
        added: list[Member] = []
        changed: list[Member] = []
        for id_, member in wanted.items():
            seat = self._seats.get(id_)
            if seat is None:
                self._seats[id_] = _Seat(member, Incarnation(id_, 0))
                added.append(member)
            elif seat.member is not member and seat.member != member:  # most are the same object
                if seat.member.address != member.address:
                    self._trust(seat)
                seat.member = member
                changed.append(member)
        changes = Changes(tuple(added), tuple(removed), tuple(changed))
        if changes:
            self.version += 1
            for row, seat in enumerate(self._seats.values()):
                seat.row = row
        return changes

    def born(self, endpoint: EndpointId, start_ms: int, now: float) -> Incarnation | None:
        """Somebody saw a life that began at `start_ms`. Returns the current life.

        None when the endpoint is no member or that life is older than the current one.
        """
        seat = self._seats.get(endpoint)
        if seat is None or start_ms < seat.incarnation.start_ms:
            return None
        if start_ms > seat.incarnation.start_ms:
            seat.incarnation = Incarnation(endpoint, start_ms)
            self._trust(seat)
            self.version += 1
        return seat.incarnation

    def member(self, endpoint: EndpointId) -> Member | None:
        seat = self._seats.get(endpoint)
        return seat.member if seat is not None else None

    def incarnation(self, endpoint: EndpointId) -> Incarnation | None:
        """The current life; `start_ms` 0 while nobody has seen its start. None: no member."""
        seat = self._seats.get(endpoint)
        return seat.incarnation if seat is not None else None

    def set_ready(self, endpoint: EndpointId, ready: bool, now: float) -> None:
        """The sidecar's word on whether the engine takes requests."""
        seat = self._seats.get(endpoint)
        if seat is not None:
            seat.not_ready_since = None if ready else now
            self._judge(seat)

    def heard(self, endpoint: EndpointId) -> None:
        """The endpoint's sidecar spoke: somebody is there."""
        seat = self._seats.get(endpoint)
        if seat is not None and seat.refused:
            seat.refused = False
            self._judge(seat)

    def set_reachable(self, endpoint: EndpointId, reachable: bool, now: float) -> None:
        """What a scrape found: False when the port refused the connection.

        A page from the engine also ends a sidecar's older "not ready" once that sidecar has been
        silent for two seconds.
        """
        seat = self._seats.get(endpoint)
        if seat is None:
            return
        seat.refused = not reachable
        if reachable and seat.not_ready_since is not None and now - seat.not_ready_since > 2.0:
            seat.not_ready_since = None
        self._judge(seat)

    def is_ready(self, endpoint: EndpointId, now: float) -> bool:
        seat = self._seats.get(endpoint)
        return seat is not None and _ready(seat, now)

    def ready(self, now: float) -> list[tuple[Member, Incarnation]]:
        """Those that may get requests, each with its current life."""
        return [(s.member, s.incarnation) for s in self._seats.values() if _ready(s, now)]

    def rows(self) -> list[tuple[Member, Incarnation]]:
        """All members with their lives, in an order that only `replace` changes."""
        return [(seat.member, seat.incarnation) for seat in self._seats.values()]

    def unready(self, now: float) -> tuple[int, ...]:
        """Rows of the members that may get no requests, ascending."""
        if not self._doubtful:
            return ()
        return tuple(sorted(seat.row for seat in self._doubtful if not _ready(seat, now)))

    def _trust(self, seat: _Seat) -> None:
        seat.refused, seat.not_ready_since = False, None
        self._doubtful.discard(seat)

    def _judge(self, seat: _Seat) -> None:
        if seat.refused or seat.not_ready_since is not None:
            self._doubtful.add(seat)
        else:
            self._doubtful.discard(seat)


def _ready(seat: _Seat, now: float) -> bool:
    if seat.refused:
        return False
    since = seat.not_ready_since
    return since is None or now - since > NOT_READY_BELIEVED_S
