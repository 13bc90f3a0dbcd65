"""vLLM's NixlConnector: the prefill engine answers with parameters, the decode engine pulls by
them.

Verified against vLLM 0.32.0. The parameters are handed on whole and in their own bytes: versions
add members (0.17 has eight, 0.32 fourteen), and the decode engine takes what it knows.
"""

from epp.bodies.spans import Body
from sidecar import bodies
from sidecar.bodies import Api
from sidecar.transfer import params
from sidecar.transfer.redaction import NAME

ASK = b'{"do_remote_decode":true,"do_remote_prefill":false}'


class NixlV2:
    """A `Plan`. A body given here carries no parameters of the client's."""

    name = "nixlv2"
    sequential = True

    def unsplittable(self, body: Body, api: Api) -> str | None:
        return bodies.splittable(body, api)

    def prefill(self, body: Body) -> bytes:
        return bodies.one_token(body, {NAME: ASK})

    def read(self, answer: bytes) -> params.PrefillAnswer:
        return params.read_answer(answer)

    def decode(self, body: Body, params: bytes) -> bytes:
        return bodies.with_member(body, NAME, params)

    def release(self, body: Body, params: bytes) -> bytes:
        return bodies.one_token(body, {NAME: params})
