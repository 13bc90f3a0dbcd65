"""Tells prefill legs of this pool's sidecars from what everybody else sends. Pure.

Rules
 1. With a leg key, a leg is a request whose `x-epp-leg` header is genuine for this very method,
    target, request id and address. Without one it is a request on the leg port from a member.
 2. Only a leg may carry `kv_transfer_params`, and only those of a prefill; only a leg gets the
    answer's. A leg that carries anything else is refused, not cleaned: its sender is broken. One
    that carries nothing wants media encoded, where that is done here.
 3. A header that claims a leg and does not prove it is refused, never served as a client's: that
    would compute a prompt for nobody.
 4. With neither key nor port no leg is sent and none is taken.
"""

from dataclasses import dataclass, field

from sidecar.bodies import api_of
from sidecar.connectors import Plan
from sidecar.connectors.nixlv2 import NixlV2
from sidecar.guard import Guard

from .legs import Leg, LegKeys
from .params import bare_error
from .targets import Target

OFF = "legs-off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A request as far as it matters here."""

    method: str
    path: str
    """Request target as sent, with its query."""
    claims: tuple[str, ...]
    """Values of `x-epp-leg`."""
    request_ids: tuple[str, ...]
    """Values of `x-request-id`."""
    at: Target | None
    """Address and port that the connection came in at."""
    peer: str
    on_leg_port: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """A leg, an ordinary request, or the stable reason why it is refused."""

    is_leg: bool = False
    refused: str | None = None


@dataclass(slots=True, kw_only=True)
class Door:
    """How legs prove themselves in this pool. `keys` is replaced when the file changes."""

    guard: Guard
    plan: Plan = field(default_factory=NixlV2)
    """Says what a prefill leg may carry."""
    encodes: bool = False
    """Whether legs are taken that carry nothing: their sender wants media encoded."""
    keys: LegKeys | None = None
    leg_port: int | None = None

    @property
    def off(self) -> str | None:
        """None, or why no leg is sent."""
        return OFF if self.keys is None and self.leg_port is None else None

    def judge(self, caller: Caller, now_s: float) -> Verdict:
        """What a request is, before its body is read. `now_s` is wall-clock time."""
        if caller.on_leg_port:
            if not self.guard.is_member_host(caller.peer):
                return Verdict(refused="leg-peer")
        elif not caller.claims:
            return Verdict()
        elif self.keys is None:
            return Verdict(refused=OFF)
        else:
            error = self._error(caller, self.keys, now_s)
            if error is not None:
                return Verdict(refused=error)
        if caller.method != "POST" or api_of(caller.path.partition("?")[0]) is None:
            return Verdict(refused="leg-path")
        return Verdict(is_leg=True)

    def body_error(self, body: bytes) -> str | None:
        """None, or why a leg's body is refused."""
        if self.encodes and bare_error(body) is None:
            return None
        return self.plan.leg_error(body)

    def where(self, target: Target) -> Target:
        """Where the leg to a member goes: its own port, or its leg port."""
        if self.keys is not None or self.leg_port is None:
            return target
        return Target(target.host, self.guard.leg_port(target) or self.leg_port)

    def proof(self, leg: Leg, now_s: float) -> str | None:
        """The header's value for a leg that is sent, or None where the leg port proves it."""
        return None if self.keys is None else self.keys.sign(leg, now_s)

    def _error(self, caller: Caller, keys: LegKeys, now_s: float) -> str | None:
        if len(caller.claims) != 1 or len(caller.request_ids) != 1 or caller.at is None:
            return "leg-malformed"
        leg = Leg(
            method=caller.method,
            path=caller.path,
            request_id=caller.request_ids[0],
            target=str(caller.at),
        )
        return keys.error(caller.claims[0], leg, now_s)
