"""Plans of handoff: what a connector wants on each leg. One small file each."""

from typing import Protocol

from epp.bodies.spans import Body
from sidecar.bodies import Api
from sidecar.transfer.params import PrefillAnswer


class Plan(Protocol):
    """How one kind of KV connector is asked to compute, to pull and to release. Pure."""

    name: str
    sequential: bool
    """Whether the decode leg needs the prefill's answer."""

    def unsplittable(self, body: Body, api: Api) -> str | None:
        """None, or the stable reason why the decode engine must compute this request alone."""

    def prefill(self, body: Body) -> bytes:
        """The body that makes an engine compute the prompt and keep its KV for a pull."""

    def read(self, answer: bytes) -> PrefillAnswer:
        """What the prefill leg's 200 offers."""

    def decode(self, body: Body, params: bytes) -> bytes:
        """The client's own body, with leave to pull."""

    def release(self, body: Body, params: bytes) -> bytes:
        """A body that pulls and then ends at once: for a client that has left meanwhile."""
