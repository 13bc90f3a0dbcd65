"""vLLM's MooncakeConnector: both engines are told one transfer id at once, and the decode engine
also by which engine, found at the prefill pod's bootstrap server, it will be sent.

The engine's id is asked for before each leg. One that was kept would be wrong after a restart of
the prefill pod (fault D11), and nobody would notice until pulls time out.
"""

from dataclasses import replace

import msgspec

from epp.bodies.sharing import Api
from epp.bodies.spans import Body
from sidecar import bodies
from sidecar.transfer import params
from sidecar.transfer.redaction import NAME
from sidecar.transfer.targets import Target
from sidecar.wire import RANKS

from .plan import Meeting, NoMeetingError, Plan, Question, member
from .ports import Ports


class Mooncake(Plan):
    """Together: the decode engine waits at the prefill engine for the transfer."""

    name = "mooncake"
    together = True

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    def question(self, target: Target) -> Question:
        return Question(Target(target.host, self._ports.bootstrap), "/query")

    def prefill(self, body: Body, api: Api, meeting: Meeting) -> bytes:
        ask = {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "transfer_id": _transfer_id(meeting),
        }
        return bodies.one_token(body, api, member(NAME, ask))

    def pairing(self, meeting: Meeting) -> params.Transfer:
        at = self.question(meeting.target).at
        told = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "transfer_id": _transfer_id(meeting),
            "remote_bootstrap_addr": f"http://{at}",
            "remote_engine_id": self._engine_id(meeting),
        }
        return params.Transfer(msgspec.json.encode(told), at.host, at.port)

    def read(self, answer: bytes, meeting: Meeting) -> params.PrefillAnswer:
        return replace(params.read_bare(answer), missing=params.UNPAIRED)

    def leg_error(self, body: bytes) -> str | None:
        return params.leg_error(body, _ask_error)

    def _engine_id(self, meeting: Meeting) -> str:
        try:
            ranks = RANKS.decode(meeting.told)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise NoMeetingError("A bootstrap server told no engines.") from error
        found = ranks.get(str(self._ports.rank_of(meeting.target)))
        if found is None or not found.engine_id:
            raise NoMeetingError("A bootstrap server does not know the rank that is asked for.")
        return found.engine_id


def _transfer_id(meeting: Meeting) -> str:
    return f"xfer-{meeting.leg}"


def _ask_error(given: object) -> str | None:
    if isinstance(given, dict):
        given = dict(given)
        name = given.pop("transfer_id", None)
        if not isinstance(name, str) or not name:
            return "params-no-transfer"
    return params.ask_error(given)
