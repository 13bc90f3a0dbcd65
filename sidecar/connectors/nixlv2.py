"""vLLM's NixlConnector: the prefill engine answers with parameters, the decode engine pulls by
them.

Verified against vLLM 0.32.0. The parameters are handed on whole and in their own bytes: versions
add members (0.17 has eight, 0.32 fourteen), and the decode engine takes what it knows.
"""

from epp.bodies.sharing import Api
from epp.bodies.spans import Body
from sidecar import bodies
from sidecar.transfer import params
from sidecar.transfer.redaction import NAME

from .plan import Meeting, Plan

ASK = b'{"do_remote_decode":true,"do_remote_prefill":false}'


class NixlV2(Plan):
    """Sequential: the decode leg needs the prefill's answer."""

    name = "nixlv2"

    def prefill(self, body: Body, api: Api, meeting: Meeting) -> bytes:
        return bodies.one_token(body, api, {NAME: ASK})

    def read(self, answer: bytes, meeting: Meeting) -> params.PrefillAnswer:
        return params.read_answer(answer)

    def leg_error(self, body: bytes) -> str | None:
        return params.leg_error(body, params.ask_error)
