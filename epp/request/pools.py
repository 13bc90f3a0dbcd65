"""Which of several pools a request is for. Pure.

The gateway may say so itself, in the metadata of its ext_proc stream, which no client can send.
Else it is the host that the client asked for (`:authority`), by the rules of the Gateway API: a
whole name goes before `*.example.com`, of these the longest goes first, and `*` takes the rest.
"""

from collections.abc import Iterator, Mapping

from epp.errors import PoolNotFound

from .exchange import Arrival, Director, Outcome

MAX_LABELS = 127
"""Of a host name, by its 253 characters."""


class Pools:
    """A director for each pool, behind one port."""

    def __init__(self, directors: Mapping[str, Director], hosts: Mapping[str, str]) -> None:
        """`directors` by the names of their pools; `hosts`: the pool that each host stands for."""
        self.unknown = 0
        """Requests that were for none of them."""
        self._directors = directors
        self._hosts = hosts

    async def decide(self, arrival: Arrival) -> Outcome:
        name = arrival.pool
        if name is None:
            name = self.of_host(arrival.headers.get(":authority", ""))
        director = None if name is None else self._directors.get(name)
        if director is None:
            self.unknown += 1
            return PoolNotFound("no pool is served under this name")
        return await director.decide(arrival)

    def of_host(self, authority: str) -> str | None:
        """The pool behind `host` or `host:port`."""
        host = authority.lower()
        if not host.endswith("]"):  # the last colon of an IPv6 address is no port's
            host = host.rpartition(":")[0] or host
        for name in _names(host):
            if name in self._hosts:
                return self._hosts[name]
        return None


def _names(host: str) -> Iterator[str]:
    """What a host may be listed as, best first."""
    yield host
    labels = host.split(".", MAX_LABELS)
    for skipped in range(1, len(labels)):
        yield "*." + ".".join(labels[skipped:])
    yield "*"
