"""Engines that keep KV in one storage (LMCache and its kin): the prefill engine fills it, and the
decode engine finds there what it lacks, without being told where.

Nobody keeps blocks for a request here, so nothing must be pulled in time or given back. A client,
or a picker, that sets `cache_hit_threshold` wants the decode engine asked first: with less than
that share of the prompt in cache it ends at once with `cache_threshold`, and only then is the
prompt prefilled elsewhere.
"""

from dataclasses import replace

from epp.bodies.sharing import Api
from epp.bodies.spans import Body
from sidecar import bodies
from sidecar.transfer import params

from .plan import Meeting, Plan, thinks

THRESHOLD = "cache_hit_threshold"
_NO_THRESHOLD = {THRESHOLD: b"0"}


class SharedStorage(Plan):
    """Sequential; with a threshold the decode engine comes first."""

    name = "shared-storage"

    def unsplittable(self, body: Body, api: Api) -> str | None:
        if api is Api.MESSAGES and thinks(body):
            return "thinking"  # one token leaves no room for it, and the engine refuses
        return super().unsplittable(body, api)

    def decode_first(self, body: Body) -> bool:
        return body.value(THRESHOLD) not in (None, b"null")

    def prefill(self, body: Body, api: Api, meeting: Meeting) -> bytes:
        return bodies.one_token(body, api, _NO_THRESHOLD if self.decode_first(body) else {})

    def read(self, answer: bytes, meeting: Meeting) -> params.PrefillAnswer:
        read = params.read_bare(answer)
        return read if read.missing else replace(read, transfer=params.Transfer(b"", leased=False))

    def decode(self, body: Body, api: Api, params: bytes) -> bytes:
        return self.alone(body, api)

    def alone(self, body: Body, api: Api) -> bytes:
        return bodies.with_members(body, _NO_THRESHOLD) if self.decode_first(body) else body.raw

    def leg_error(self, body: bytes) -> str | None:
        return params.bare_error(body)
