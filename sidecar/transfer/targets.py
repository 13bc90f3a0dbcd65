"""Reads `x-prefiller-host-port`: where a prompt may be prefilled, best first. Pure.

The picker writes `ip:port` items, comma separated, in one header or several. Items that are not
that are left out and counted; nothing here asks a name server. Whether a target is a member of the
pool is for the caller to say.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address

MAX_TARGETS = 8
"""Candidates that are kept; later ones are left out."""
MAX_TEXT = 4096
"""Characters of all header values together; a longer list counts as one malformed item."""

_ITEM = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]{2,45})\]|(?P<host>[A-Za-z0-9._-]{1,253})):(?P<port>[0-9]{1,5})"
)
_NUMERIC = re.compile(r"(?:[0-9]+|0[xX][0-9A-Fa-f]*)\.?")


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """Where a prefill engine listens. `host` has one spelling for each address."""

    host: str
    """An IPv4 or IPv6 address without brackets, or a name in lower case."""
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Targets:
    """What the header said."""

    found: tuple[Target, ...] = ()
    """In order, each once, at most `MAX_TARGETS`."""
    malformed: int = 0
    """Items that are no `host:port`."""

    @property
    def reason(self) -> str | None:
        """None, or why there is nowhere to prefill."""
        if self.found:
            return None
        return "targets-malformed" if self.malformed else "no-targets"


def parse(values: Iterable[str]) -> Targets:
    """Read all values of the header. Never raises; empty items (`a:1,,b:2`) mean nothing."""
    text = ",".join(values)
    return Targets(malformed=1) if len(text) > MAX_TEXT else _read(text)


@lru_cache(maxsize=256)
def _read(text: str) -> Targets:
    items = [item.strip(" \t") for item in text.split(",")]
    read = [_target(item) for item in items if item]
    found = dict.fromkeys(target for target in read if target)
    return Targets(tuple(found)[:MAX_TARGETS], read.count(None))


def _target(item: str) -> Target | None:
    match = _ITEM.fullmatch(item)
    if not match:
        return None
    host = _address(match["v6"], match["host"])
    port = int(match["port"])
    return Target(host, port) if host and 1 <= port <= 65535 else None


def _address(v6: str | None, host: str | None) -> str | None:
    """One spelling of the host. Numbers that only a resolver takes for an address are refused."""
    try:
        if v6 is not None:
            return str(IPv6Address(v6))
        assert host is not None  # one of the two stands in every item
        if _NUMERIC.fullmatch(host.rstrip(".").rpartition(".")[2] or "0"):
            return str(IPv4Address(host))
    except ValueError:
        return None
    return host.lower()
