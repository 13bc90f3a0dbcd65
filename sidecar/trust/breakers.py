"""Keeps prompts from prefill pods that have failed again and again. Pure.

A pod that failed `failures` times in a row is left out for a pause. Then one leg goes there as a
probe, and whoever comes meanwhile goes elsewhere; each probe that fails doubles the pause. The
first leg that a pod serves ends it.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from sidecar.transfer.targets import Target

MAX_HOSTS = 1024
"""Pods whose failures are remembered, the latest ones."""


@dataclass(slots=True)
class _Host:
    failures: int = 0
    pause_s: float = 0.0
    until: float | None = None
    """No leg goes there before this; None: it is not left out."""
    probed: bool = False


class Breakers:
    """One for a sidecar. Times are those of a monotonic clock, in seconds."""

    def __init__(
        self,
        *,
        failures: int = 3,
        pause_s: float = 1.0,
        max_pause_s: float = 30.0,
        max_hosts: int = MAX_HOSTS,
    ) -> None:
        self._failures = failures
        self._pause_s = pause_s
        self._max_pause_s = max_pause_s
        self._max_hosts = max_hosts
        self._hosts: OrderedDict[Target, _Host] = OrderedDict()
        self.opened = 0
        """How often a pod was left out, from being used before."""

    @property
    def open(self) -> int:
        """Pods that are left out, or whose probe is under way."""
        return sum(host.until is not None for host in self._hosts.values())

    def __len__(self) -> int:
        """Pods whose failures are remembered."""
        return len(self._hosts)

    def usable(self, targets: Iterable[Target], now: float) -> tuple[Target, ...]:
        """Those that a leg may go to, in their order."""
        if not self._hosts:
            return tuple(targets)
        return tuple(target for target in targets if self._may_go(target, now))

    def _may_go(self, target: Target, now: float) -> bool:
        host = self._hosts.get(target)
        return host is None or host.until is None or now >= host.until

    def sent(self, target: Target, now: float) -> None:
        """A leg goes there."""
        host = self._hosts.get(target)
        if host is not None and host.until is not None:
            host.until = now + host.pause_s
            host.probed = True

    def succeeded(self, target: Target) -> None:
        """It served, or refused by the client's own fault."""
        self._hosts.pop(target, None)

    def failed(self, target: Target, now: float) -> None:
        host = self._hosts.setdefault(target, _Host())
        self._hosts.move_to_end(target)
        if len(self._hosts) > self._max_hosts:
            self._hosts.popitem(last=False)
        host.failures += 1
        if host.failures < self._failures:
            return
        if host.until is None:
            self.opened += 1
            host.pause_s = self._pause_s
        elif host.probed:
            host.pause_s = min(2 * host.pause_s, self._max_pause_s)
        else:
            return  # it was under way before the others failed
        host.until, host.probed = now + host.pause_s, False
