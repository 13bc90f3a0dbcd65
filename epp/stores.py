"""A replica's ways to the shared log and to its fellow replicas, by its settings and its place."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from epp.config.serve import ServeSettings
from epp.framework import EndpointId, PoolId
from epp.state.leases import Alone, Register
from epp.state.mates.hub import Hub
from epp.state.mates.link import Link
from epp.state.store import Reader, SumsBoard, Writer
from epp.state.store.board import RedisBoard
from epp.state.store.leases import RedisRegister
from epp.state.store.memory import StateServer
from epp.state.store.place import read_access
from epp.state.store.port_writer import StateWriter
from epp.state.store.redis_reader import RedisReader
from epp.state.store.redis_writer import RedisWriter

BOARD_CALL_S = 0.5
"""A word with other replicas takes no longer: it is said again within the lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which of several workers a replica is; see `epp.workers`."""

    number: int
    """From 0; the first one hosts the embedded store."""
    socket: Path
    """Where it does so for the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """What it takes to write for engines without a sidecar."""

    open_writer: Callable[[], Writer]
    """Into the log, for one of them."""
    register: Callable[[], Register]
    """Of leases: which replica does what one does for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """`board` is None where there are no other replicas to hear of."""

    reader: Reader
    writing: Writing | None = None
    """None for a worker whose store another one hosts: that one writes."""
    board: SumsBoard | None = None
    listener: StateServer | Hub | None = None
    """To be started before anything is read."""

    counts: Counter[str] = field(default_factory=Counter[str])
    """What went wrong on the way to other replicas, by the words of `hub`, `link` and `board`."""

    async def start(self) -> None:
        """Open the sidecars' port, where it is ours. Raises CannotListen."""
        if self.listener is not None:
            await self.listener.start()

    async def close(self) -> None:
        """The other boards are their readers."""
        await self.reader.close()
        if isinstance(self.board, RedisBoard):
            await self.board.close()

    @property
    def state_port(self) -> int | None:
        """Where sidecars stream to; known once it was started."""
        match self.listener:
            case Hub():
                return self.listener.server.port
            case StateServer():
                return self.listener.port
            case _:
                return None


def ways(
    settings: ServeSettings,
    place: Place | None,
    *,
    name: str,
    members: Callable[[], Iterable[EndpointId]],
    is_member: Callable[[EndpointId], bool],
    clock: Callable[[], float],
    chance: Random,
) -> Ways:
    """Nothing is opened yet. `name`: of this life of this replica.

    Raises ConfigError for a token or an URL that cannot be read.
    """
    if settings.store == "redis":
        assert settings.redis_url is not None
        pool = PoolId(settings.pool_name)
        access = read_access(
            settings.redis_url,
            password_file=settings.redis_password_file,
            ca_file=settings.redis_ca_file,
        )
        board = RedisBoard(access, pool, name, call_s=BOARD_CALL_S)
        streams = settings.redis_streams
        return Ways(
            reader=RedisReader(access, pool, members=members, streams=streams),
            writing=Writing(
                open_writer=lambda: RedisWriter(access, pool, streams=streams),
                register=lambda: RedisRegister(access, pool, name, call_s=BOARD_CALL_S),
            ),
            board=board,
            counts=board.counts,
        )
    if place is not None and place.number > 0:
        link = Link(place.socket, clock=clock, rng=chance)
        return Ways(reader=link, board=link, counts=link.counts)
    host, token = settings.state_host, settings.state_token()
    server = StateServer(host, settings.state_port, token=token, is_member=is_member)

    # What we write ourselves passes the checks of our own port, like everybody's.
    writing = Writing(
        open_writer=lambda: StateWriter(_reached(host), server.port, token=token), register=Alone
    )
    if place is None:
        return Ways(reader=server, writing=writing, listener=server)
    hub = Hub(server, place.socket, clock=clock)
    return Ways(reader=hub, writing=writing, board=hub, listener=hub, counts=hub.counts)


def _reached(host: str) -> str:
    """Where a port that listens on `host` is reached from this machine."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - read, not bound
