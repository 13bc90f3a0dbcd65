"""vLLM's OffloadingConnector and its peers: the decode engine fetches by a name that both legs got.

Sequential: the fetch has a time limit of its own, and sent at once it would pay for the prefill.
Whoever computes a prompt, the prefill engine or the one that answers, may fetch what a third pod,
the source, has of it in its cache.
"""

from dataclasses import replace

import msgspec

from epp.bodies.sharing import Api
from epp.bodies.spans import Body
from sidecar import bodies
from sidecar.transfer import params
from sidecar.transfer.redaction import NAME
from sidecar.transfer.targets import Target
from sidecar.wire import Peer

from .plan import Meeting, Plan, member, thinks
from .ports import Ports


class Offloading(Plan):
    """The prefill engine's answer says only that the blocks are there."""

    name = "offloading"

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    def unsplittable(self, body: Body, api: Api) -> str | None:
        # vLLM lets only a leg that says `do_remote_decode` think with less room than it asks for
        if api is Api.MESSAGES and thinks(body):
            return "thinking"
        return super().unsplittable(body, api)

    def prefill(self, body: Body, api: Api, meeting: Meeting) -> bytes:
        ask: dict[str, object] = {"remote_decoder": {"kv_request_id": meeting.leg}}
        if meeting.source is not None:
            ask["remote_kv_source"] = self._peer(meeting.leg, meeting.source)
        return bodies.one_token(body, api, member(NAME, ask))

    def read(self, answer: bytes, meeting: Meeting) -> params.PrefillAnswer:
        read = params.read_bare(answer)
        if read.missing:
            return read
        peer = self._peer(meeting.leg, meeting.target)
        told = msgspec.json.encode({"remote_prefiller": peer})
        return replace(read, transfer=params.Transfer(told, peer.remote_host, peer.remote_port))

    def fetching(self, body: Body, source: Meeting) -> bytes | None:
        ask = {"remote_kv_source": self._peer(source.leg, source.target)}
        return bodies.with_members(body, member(NAME, ask))

    def _peer(self, leg: str, at: Target) -> Peer:
        return Peer(leg, at.host, self._ports.p2p + self._ports.rank_of(at))

    def leg_error(self, body: bytes) -> str | None:
        return params.leg_error(body, _ask_error)


def _ask_error(given: object) -> str | None:
    match given:
        case {"remote_decoder": {"kv_request_id": str(name), **more}, **others}:
            source = others.pop("remote_kv_source", None)
            good = name and not more and not others and _is_peer(source)
            return None if good else "params-remote"
        case dict():
            return "params-no-transfer"
        case _:
            return "params-not-an-object"


def _is_peer(given: object) -> bool:
    """Whether this names a source, or none."""
    try:
        peer = msgspec.convert(given, Peer | None)
    except msgspec.ValidationError:
        return False
    return peer is None or bool(peer.kv_request_id and peer.remote_host and peer.remote_port > 0)
