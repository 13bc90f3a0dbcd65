"""SGLang: both engines get the client's own body, with the room in which they meet.

The prefill engine samples the first token, so nothing that concerns sampling may differ between
the legs, and neither is limited. Only the prefill leg never streams: the head of a stream says
nothing of the prompt. The room is a name of 63 bits that no other request of the pool
has. An engine that runs in decode mode computes no prompts, so what cannot be split fails there.
"""

from dataclasses import replace
from hashlib import blake2b

import msgspec

from epp.bodies.sharing import Api
from epp.bodies.spans import Body
from sidecar import bodies
from sidecar.transfer import params
from sidecar.transfer.redaction import BOOTSTRAP

from .plan import Meeting, Plan
from .ports import Ports

_ROOM_BITS = 63


class Sglang(Plan):
    """Together: the decode engine waits in the room for the prefill engine."""

    name = "sglang"
    together = True

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    def prefill(self, body: Body, api: Api, meeting: Meeting) -> bytes:
        room = Body.read(self._room(meeting))
        members = {name: bytes(room.fields[name]) for name in BOOTSTRAP}
        return body.edited(put={"stream": b"false", **members}, drop={"stream_options"})

    def pairing(self, meeting: Meeting) -> params.Transfer:
        return params.Transfer(self._room(meeting), meeting.target.host, self._ports.bootstrap)

    def read(self, answer: bytes, meeting: Meeting) -> params.PrefillAnswer:
        return replace(params.read_bare(answer), missing=params.UNPAIRED)

    def decode(self, body: Body, api: Api, params: bytes) -> bytes:
        room = Body.read(params)
        return bodies.with_members(body, {name: bytes(room.fields[name]) for name in BOOTSTRAP})

    def release(self, body: Body, api: Api, params: bytes) -> bytes:
        return self.decode(body, api, params)

    def leg_error(self, body: bytes) -> str | None:
        return params.room_error(body)

    def _room(self, meeting: Meeting) -> bytes:
        digest = blake2b(meeting.leg.encode(), digest_size=8).digest()
        number = int.from_bytes(digest, "big") >> (64 - _ROOM_BITS)
        values = (meeting.target.host, self._ports.bootstrap, number)
        return msgspec.json.encode(dict(zip(BOOTSTRAP, values, strict=True)))
