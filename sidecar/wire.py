"""What msgspec reads of bodies that pass a sidecar, apart from the code that asks for it: that can
be compiled (docs/decisions/0017), and these classes cannot. Pure.
"""

from typing import Any

import msgspec


class Asking(msgspec.Struct):
    """What a request says of its model and its stream."""

    model: Any = None
    stream: Any = None
    stream_options: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class Params(msgspec.Struct):
    """`kv_transfer_params` of NIXL, as far as they are looked at."""

    do_remote_prefill: bool
    do_remote_decode: bool
    remote_block_ids: list[list[int] | int]
    """Empty is legal: all is cached at the decode engine, which still has to be called."""
    remote_engine_id: str
    remote_request_id: str
    remote_host: str
    remote_port: int


class Finished(msgspec.Struct):
    """A choice of a prefill leg's answer."""

    finish_reason: str | None = None


class Prefilled(msgspec.Struct):
    """A prefill leg's answer."""

    kv_transfer_params: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    choices: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    usage: Any = None


class Choice(msgspec.Struct):
    """A choice of an event."""

    delta: dict[str, Any] | None = None
    finish_reason: Any = None


class Event(msgspec.Struct):
    """An event of a stream, or an answer in JSON."""

    error: Any = None
    object: Any = None
    type: Any = None
    choices: list[Choice] | None = None


class Peer(msgspec.Struct, forbid_unknown_fields=True):
    """Where an engine fetches, and by which name."""

    kv_request_id: str
    remote_host: str
    remote_port: int


class Rank(msgspec.Struct):
    """One rank of an engine, as Mooncake's bootstrap server tells of it."""

    engine_id: str


ASKING = msgspec.json.Decoder(Asking)
PARAMS = msgspec.json.Decoder(Params)
FINISHED = msgspec.json.Decoder(list[Finished])
PREFILLED = msgspec.json.Decoder(Prefilled)
EVENT = msgspec.json.Decoder(Event)
RANKS = msgspec.json.Decoder(dict[str, Rank])
