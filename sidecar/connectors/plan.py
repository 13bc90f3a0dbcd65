"""What a plan of handoff says. Pure."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from epp.bodies.sharing import Api
from epp.bodies.spans import Body
from epp.errors import EppError
from sidecar import bodies
from sidecar.transfer.params import PrefillAnswer, Transfer
from sidecar.transfer.redaction import NAME
from sidecar.transfer.targets import Target


@dataclass(slots=True, kw_only=True)
class Meeting:
    """One prefill leg: what both legs may agree by before either is sent. Never changed once it is
    made."""

    leg: str
    """The leg's id, unique in the pool."""
    target: Target
    told: bytes = b""
    """What the prefill pod answered to the plan's question."""
    source: Target | None = None
    """Another pod that holds KV of the prompt."""


@dataclass(frozen=True, slots=True)
class Question:
    """A GET that a prefill pod is asked before a leg goes there."""

    at: Target
    path: str


class NoMeetingError(EppError):
    """A prefill pod's answer to the question is of no use; nothing was computed."""

    reason = "no-meeting"


class Plan(ABC):
    """How one kind of KV connector is asked to compute, to pull and to release.

    One executor runs all plans, so that time limits, retries, cancellation and metrics are the
    same. Bodies given here carry no parameters of a client's. The defaults are those of an engine
    that is told where to pull by `kv_transfer_params`.
    """

    name: str
    together = False
    """Both legs are sent at once: they find each other by what `pairing` says. What the prefill
    leg answers counts only when it fails."""

    def unsplittable(self, body: Body, api: Api) -> str | None:
        """None, or the stable reason why the decode engine must compute this request alone."""
        return bodies.splittable(body, api)

    def decode_first(self, body: Body) -> bool:
        """Whether the decode engine is asked first, and refuses what it has too little of."""
        return False

    def question(self, target: Target) -> Question | None:
        """What to ask at a prefill pod before each leg; never kept, for pods restart."""
        return None

    @abstractmethod
    def prefill(self, body: Body, api: Api, meeting: Meeting) -> bytes:
        """The body that makes an engine compute the prompt and keep its KV for a pull."""

    def pairing(self, meeting: Meeting) -> Transfer:
        """What the decode leg is told when both are sent `together`. Raises NoMeetingError."""
        raise NoMeetingError("These legs follow each other.")

    @abstractmethod
    def read(self, answer: bytes, meeting: Meeting) -> PrefillAnswer:
        """What the prefill leg's 200 offers."""

    def decode(self, body: Body, api: Api, params: bytes) -> bytes:
        """The client's own body, with leave to pull."""
        return bodies.with_members(body, {NAME: params})

    def release(self, body: Body, api: Api, params: bytes) -> bytes:
        """A body that pulls and then ends soon: for a client that has left meanwhile.

        Where thinking needs more room than one token the leg streams instead: its first byte ends
        it.
        """
        if api is Api.MESSAGES and thinks(body):
            return bodies.with_members(body, {"stream": b"true", NAME: params})
        return bodies.one_token(body, api, {NAME: params})

    def fetching(self, body: Body, source: Meeting) -> bytes | None:
        """The body of a request that is not split and may fetch KV from another pod, its `target`;
        None where engines of this kind do not."""
        return None

    def alone(self, body: Body, api: Api) -> bytes:
        """The body of a decode leg that computes the prompt itself."""
        return body.raw

    @abstractmethod
    def leg_error(self, body: bytes) -> str | None:
        """None, or why a prefill leg that another sidecar sent here is refused."""


def thinks(body: Body) -> bool:
    """Whether a body of the messages API sets tokens aside for thinking, of which an engine wants
    fewer than the limit leaves."""
    return body.value("thinking") not in (None, b"null")


def member(name: str, value: Mapping[str, object]) -> dict[str, bytes]:
    """One member of a leg's body, written as compactly as engines do."""
    return {name: msgspec.json.encode(value)}
