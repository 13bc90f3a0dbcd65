"""vLLM's OffloadingConnector and its peers: the decode engine fetches by a name that both legs got.

Sequential: the fetch has a time limit of its own, and sent at once it would pay for the prefill.
"""

from dataclasses import replace

import msgspec

from epp.bodies.sharing import Api
from epp.bodies.spans import Body
from sidecar import bodies
from sidecar.transfer import params
from sidecar.transfer.redaction import NAME

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
        ask = {"remote_decoder": {"kv_request_id": meeting.leg}}
        return bodies.one_token(body, api, member(NAME, ask))

    def read(self, answer: bytes, meeting: Meeting) -> params.PrefillAnswer:
        read = params.read_bare(answer)
        if read.missing:
            return read
        host = meeting.target.host
        port = self._ports.p2p + self._ports.rank_of(meeting.target)
        source = {"kv_request_id": meeting.leg, "remote_host": host, "remote_port": port}
        told = msgspec.json.encode({"remote_prefiller": source})
        return replace(read, transfer=params.Transfer(told, host, port))

    def leg_error(self, body: bytes) -> str | None:
        return params.leg_error(body, _ask_error)


def _ask_error(given: object) -> str | None:
    match given:
        case {"remote_decoder": {"kv_request_id": str(name), **more}, **others}:
            return "params-remote" if more or others or not name else None
        case dict():
            return "params-no-transfer"
        case _:
            return "params-not-an-object"
