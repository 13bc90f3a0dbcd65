"""A client of Redis whose lines are cut at once.

To close one as redis-py does takes several turns of the loop: a task that is cancelled in between
leaves it open, and one with bytes that a frozen server does not read stays open until it is thawed.
To cut one waits for nothing and sends nothing more.
"""

from typing import Any

from redis.asyncio import Connection, ConnectionPool, Redis, SSLConnection
from redis.exceptions import ConnectionError as LineError


class _Cut(Connection):
    """Ends without a goodbye, whoever ends it: the client itself after an error, or we."""

    def __init__(self, *, once: bool, **named: Any) -> None:
        super().__init__(**named)
        self._once = once
        self._opened = False

    async def _connect(self) -> None:
        if self._opened and self._once:
            raise LineError("connection lost")
        self._opened = True
        await super()._connect()  # type: ignore[no-untyped-call]

    def cut(self) -> None:
        """Its transport is gone by the loop's next turn."""
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = self._reader = None

    async def disconnect(self, *arguments: Any, **named: Any) -> None:
        """What redis-py calls."""
        self.cut()
        await super().disconnect(*arguments, **named)


class _CutTls(_Cut, SSLConnection):
    pass


class _Lines(ConnectionPool):
    """Of one client; there are `max_connections` at most, each used again and again."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self.made: list[_Cut] = []

    def make_connection(self) -> _Cut:
        line: _Cut = super().make_connection()  # type: ignore[no-untyped-call]
        self.made.append(line)
        return line


class Client(Redis):
    """Whoever has it cuts it in the end, and uses it no more."""

    def __init__(self, lines: _Lines) -> None:
        super().__init__(connection_pool=lines)
        self._lines = lines

    def cut(self) -> None:
        """Cut every line, without waiting."""
        for line in self._lines.made:
            line.cut()


def client_of(*, tls: bool, once: bool, **named: Any) -> Client:
    """`named`: what redis-py's connections take. Nothing is opened yet.

    `once`: a line that was lost is an error. Else the client opens it again, unnoticed, when it
    finds before a command that it is gone: perhaps to another server under the same address.
    """
    kind = _CutTls if tls else _Cut
    return Client(_Lines(connection_class=kind, max_connections=2, once=once, **named))
