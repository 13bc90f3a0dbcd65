"""Endpoints of a pool: its pods that take requests, at each of its ports. Pure.

Pods are told one by one, and only what changed is made anew: the endpoints of a pod that did not
change stay the same objects.
"""

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from epp.config.endpoints_file import ROLE_LABEL
from epp.framework import EndpointId, PoolId, Role
from epp.state.endpoints import Member

from .objects import Pod


@dataclass(frozen=True, slots=True)
class _Seat:
    created: str
    members: tuple[Member, ...]


class Membership:
    """`odd_role` is told a pod's name and the role that nobody knows; it then serves whole
    requests."""

    def __init__(self, pool: PoolId, *, odd_role: Callable[[str, str], None]) -> None:
        self._pool = pool
        self._odd_role = odd_role
        self._ports: tuple[int, ...] = ()
        self._pods: dict[str, Pod] = {}
        self._seats: dict[str, _Seat] = {}

    @property
    def pods(self) -> int:
        """Known, whether or not they take requests."""
        return len(self._pods)

    def listen_at(self, ports: tuple[int, ...]) -> None:
        """The pool's target ports."""
        if ports != self._ports:
            self._ports = ports
            self.restart(self._pods)

    def restart(self, pods: Mapping[str, Pod]) -> None:
        """These pods, and no others."""
        self._pods, self._seats = {}, {}
        for key, pod in pods.items():
            self.tell(key, pod)

    def tell(self, key: str, pod: Pod | None) -> None:
        """What a pod is since; None: it is gone."""
        if pod is None:
            self._pods.pop(key, None)
            self._seats.pop(key, None)
            return
        self._pods[key] = pod
        members = self._members(pod)
        if members:
            self._seats[key] = _Seat(pod.created, members)
        else:
            self._seats.pop(key, None)

    def members(self) -> list[Member]:
        """Of two pods that claim one address the younger one has it: an address is given again."""
        found: dict[str, tuple[str, Member]] = {}
        for seat in self._seats.values():
            for member in seat.members:
                known = found.get(member.address)
                if known is None or known[0] < seat.created:
                    found[member.address] = (seat.created, member)
        return [member for _, member in found.values()]

    def _members(self, pod: Pod) -> tuple[Member, ...]:
        host = _host(pod.ip)
        if not pod.takes_requests or host is None:
            return ()
        role = self._role(pod)
        active = pod.active_ports
        return tuple(
            Member(
                id=EndpointId(self._pool, pod.uid, port),
                address=f"{host}:{port}",
                role=role,
                labels=pod.labels,
                metrics_url=f"http://{host}:{port}/metrics",
                has_sidecar=pod.has_sidecar,
                events=replace(pod.events, step=step) if step else pod.events,
            )
            for step, port in enumerate(self._ports)
            if active is None or port in active
        )

    def _role(self, pod: Pod) -> Role:
        label = pod.labels.get(ROLE_LABEL, "")
        try:
            return Role(label)
        except ValueError:
            self._odd_role(pod.name, label)
            return Role.UNLABELLED


def _host(ip: str) -> str | None:
    """As it stands before a port; None for what is no address."""
    try:
        address = ipaddress.ip_address(ip)
    except ValueError:
        return None
    return f"[{address}]" if address.version == 6 else str(address)
