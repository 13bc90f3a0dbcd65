"""Who belongs to the pool: the only pods that a prompt is sent to, or taken from. Pure.

Without a list of members nobody is allowed but whom the picker vouches for. Addresses are compared
as addresses, ports as numbers: a member's other ports are as foreign as any other machine.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address

from epp.config.endpoints_file import ROLE_LABEL, EndpointEntry
from epp.framework import Role

from .transfer.targets import Target

_ROLES = {role.value: role for role in Role}


@dataclass(frozen=True, slots=True)
class Member:
    """One endpoint of the pool. `leg_port` is where it takes prefill legs without a key."""

    at: Target
    is_self: bool = False
    leg_port: int | None = None
    role: Role = Role.UNLABELLED


@dataclass(frozen=True, slots=True)
class Allowed:
    """What is left of a list of prefill targets."""

    targets: tuple[Target, ...] = ()
    refused: tuple[str, ...] = ()
    """For each target that was left out: the stable reason."""

    @property
    def reason(self) -> str | None:
        """None, or why there is nowhere to prefill: what the first of them lacked."""
        return None if self.targets else next(iter(self.refused), "no-targets")


@lru_cache(maxsize=1024)
def address(text: str) -> str:
    """The one spelling of an address; an IPv4 peer of an IPv6 socket is an IPv4 address."""
    try:
        found: IPv4Address | IPv6Address = ip_address(text.partition("%")[0])
    except ValueError:
        return text.lower()
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return str(found)


@dataclass(slots=True)
class Guard:
    """The members at present. `name` is this sidecar's own identity in the file."""

    name: str
    known: bool = field(default=False, init=False)
    """Whether there ever was a list."""
    _members: dict[Target, Member] = field(default_factory=dict, init=False)
    _hosts: frozenset[str] = field(default_factory=frozenset, init=False)

    def replace(self, entries: Iterable[EndpointEntry], own_port: int) -> None:
        """Take over a new list; the last good one stands until then."""
        members = (
            Member(
                Target(address(entry.address), entry.port),
                entry.identity == self.name and entry.port == own_port,
                entry.legPort,
                _ROLES.get(entry.labels.get(ROLE_LABEL, ""), Role.UNLABELLED),
            )
            for entry in entries
        )
        self._members = {member.at: member for member in members}
        self._hosts = frozenset(target.host for target in self._members)
        self.known = True

    def __len__(self) -> int:
        return len(self._members)

    @property
    def own(self) -> Member | None:
        """This sidecar's own entry, if it has one."""
        return next((member for member in self._members.values() if member.is_self), None)

    @property
    def prefillers(self) -> tuple[Target, ...]:
        """The other members that compute prompts for others."""
        members = self._members.values()
        return tuple(one.at for one in members if one.role.serves_prefill and not one.is_self)

    def allowed(
        self, targets: Sequence[Target], own: Target | None, *, vouched: bool = False
    ) -> Allowed:
        """Those targets that are other members. `own`: where this very request came in.

        `vouched`: the picker says so itself, which a list may be behind.
        """
        found: list[Target] = []
        refused: list[str] = []
        for target in targets:
            at = Target(address(target.host), target.port)
            member = self._members.get(at)
            if not (self.known or vouched):
                refused.append("members-unknown")
            elif member is None and not vouched:
                refused.append("target-foreign")
            elif at == own or (member is not None and member.is_self):
                refused.append("target-self")
            else:
                found.append(at)
        return Allowed(tuple(found), tuple(refused))

    def leg_port(self, target: Target) -> int | None:
        """The port that a member's entry names for prefill legs."""
        member = self._members.get(target)
        return None if member is None else member.leg_port

    def is_member_host(self, host: str) -> bool:
        """Whether a peer's address is one of a member, whatever its port."""
        return address(host) in self._hosts
