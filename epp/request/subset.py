"""Which endpoints the gateway allows for one request (the subset hint).

An entry is `ip:port` or a bare `ip`, IPv6 with or without brackets. What cannot be read allows
nobody, so that a malformed hint never widens the choice to the whole pool (fault B16).
"""

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv6Address, ip_address

Spot = tuple[str, str]
"""Host in its shortest spelling, and port; an empty port means any."""


def allowed(addresses: Iterable[str], subset: Iterable[str]) -> list[bool]:
    """Whether each of these `ip:port` is inside the subset, in their order."""
    spots = {spot for entry in subset for spot in _spots(entry)}
    return [_inside(address, spots) for address in addresses]


def _inside(address: str, spots: set[Spot]) -> bool:
    host, port = _address(address)
    return (host, port) in spots or (host, "") in spots


@lru_cache(maxsize=4096)
def _address(address: str) -> Spot:
    host, _, port = address.rpartition(":")
    return _host(host), port


def _spots(entry: str) -> list[Spot]:
    """Every way to read an entry: `::1:8000` is an address, and also an address with a port."""
    entry = entry.strip()
    host, colon, port = entry.rpartition(":")
    if entry.startswith("[") and entry.endswith("]"):
        return [(_host(entry), "")]
    if not colon:
        return [(_host(entry), "")] if entry else []
    spots = [(_host(host), port)] if host and port.isascii() and port.isdigit() else []
    if entry.count(":") > 1 and not entry.startswith("["):
        spots.append((_host(entry), ""))
    return spots


def _host(text: str) -> str:
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        address = ip_address(bare)
    except ValueError:
        return bare.lower()
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        # How a gateway that listens on both families spells IPv4.
        return address.ipv4_mapped.compressed
    return address.compressed
