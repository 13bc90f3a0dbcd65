"""What a request says about KV where the two engines find each other by a name. Pure.

NIXL's prefill engine answers with an offer (`transfer`). These connectors answer with nothing: both
legs carry one name, under which the prefill engine keeps its offer, and the decode engine asks for
it there. Whoever gives one name to two requests gets the KV of the wrong one. With offloading a
request may name a third engine besides (`remote_kv_source`), whose cache holds some of its prompt.

| connector | prefill leg | decode leg |
|---|---|---|
| mooncake | `transfer_id` | the same, the bootstrap server's address and the engine's id |
| offloading | `remote_decoder.kv_request_id` | `remote_prefiller`: the same, host and port |
| sglang | `bootstrap_room` of the body | the same, with `bootstrap_host` and `bootstrap_port` |
"""

from typing import Literal
from urllib.parse import urlsplit

import msgspec

from epp.sim.transfer import NO_TRANSFER, MeetAsk, Transfer

KvConnector = Literal["nixlv2", "shared-storage", "sglang", "mooncake", "offloading"]


class Room(msgspec.Struct, frozen=True):
    """SGLang's members of a body; all of them, or it names no room."""

    bootstrap_host: str
    bootstrap_port: int
    bootstrap_room: int


class _Mooncake(msgspec.Struct, frozen=True):
    transfer_id: str
    do_remote_prefill: bool = False
    do_remote_decode: bool = False
    remote_bootstrap_addr: str = ""
    remote_engine_id: str = ""


class _Peer(msgspec.Struct, frozen=True):
    kv_request_id: str
    remote_host: str = ""
    remote_port: int = 0


class _Offloading(msgspec.Struct, frozen=True):
    remote_decoder: _Peer | None = None
    remote_prefiller: _Peer | None = None
    remote_kv_source: _Peer | None = None


def mooncake(params: object) -> Transfer:
    """What cannot be read is computed here, as vLLM does after a warning."""
    try:
        read = msgspec.convert(params, _Mooncake)
    except msgspec.ValidationError:
        return NO_TRANSFER
    if read.do_remote_decode:
        return Transfer(offer=True, name=read.transfer_id)
    at = urlsplit(read.remote_bootstrap_addr)
    if not read.do_remote_prefill or not read.remote_engine_id or not at.hostname or not at.port:
        return NO_TRANSFER
    return Transfer(meet=MeetAsk(read.transfer_id, at.hostname, at.port, read.remote_engine_id))


def offloading(params: object) -> Transfer:
    try:
        read = msgspec.convert(params, _Offloading)
    except msgspec.ValidationError:
        return NO_TRANSFER
    source = _at(read.remote_kv_source)
    if read.remote_decoder is not None:
        return Transfer(offer=True, name=read.remote_decoder.kv_request_id, source=source)
    return Transfer(meet=_at(read.remote_prefiller), source=source)


def _at(peer: _Peer | None) -> MeetAsk | None:
    if peer is None or not peer.remote_host:
        return None
    return MeetAsk(peer.kv_request_id, peer.remote_host, peer.remote_port)


def sglang(room: Room, *, prefills: bool) -> Transfer:
    """The engine's mode says which of the two legs it is."""
    name = str(room.bootstrap_room)
    if prefills:
        return Transfer(offer=True, name=name)
    return Transfer(meet=MeetAsk(name, room.bootstrap_host, room.bootstrap_port))
