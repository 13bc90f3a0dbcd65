"""Blocks that a prefill engine keeps for a decode engine, each set for the time of a lease. Pure.

Rule 1: a pin is issued once and ends once: pulled, handed back unread, or expired.
Rule 2: a heartbeat gives a pin two thirds of a lease from then on; it never shortens one.
Rule 3: reading needs no pin, as in the hardware: a reader names blocks and gets what is in them at
that moment, even when the pin has ended and they hold another prompt. The engine only counts it.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from epp.sim.hashing import Content
from epp.sim.kv import BlockPool

REMEMBERED = 4096
"""Ended pins whose end is known still; a pull of an older one counts as unknown."""


class _End(Enum):
    TAKEN = "taken"
    EXPIRED = "expired"


@dataclass(slots=True)
class _Pin:
    blocks: list[int]
    expires: float


@dataclass(slots=True)
class PinCounters:
    """Totals since the engine started. Live pins are issued - pulled - returned - expired."""

    issued: int = 0
    pulled: int = 0
    """Pins that were read by a decode engine."""
    returned: int = 0
    """Pins that a decode engine gave back without reading them."""
    expired: int = 0
    late: int = 0
    """Pulls after the lease had ended."""
    reused: int = 0
    """Pulls of what had been pulled or returned before."""
    unknown: int = 0
    """Pulls of a request that never had a pin here, or of an earlier life of this engine."""
    stray: int = 0
    """Blocks handed back whose pin had ended."""
    heartbeats: int = 0
    """Leases that a heartbeat found and made longer."""

    @property
    def after_end(self) -> int:
        """Notifications that vLLM counts as after expiry."""
        return self.late + self.reused + self.unknown + self.stray


class Pins:
    """The pins of one engine. They own the blocks that are given to `issue`."""

    def __init__(self, pool: BlockPool, lease_s: float) -> None:
        self.counters = PinCounters()
        self._pool = pool
        self._lease_s = lease_s
        self._pins: dict[str, _Pin] = {}
        self._ended: OrderedDict[str, _End] = OrderedDict()
        self._soonest: float | None = None

    def __len__(self) -> int:
        return len(self._pins)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._pins

    @property
    def blocks(self) -> int:
        """Pinned blocks; one that several pins share counts for each."""
        return sum(len(pin.blocks) for pin in self._pins.values())

    @property
    def next_at(self) -> float | None:
        """A time before which no lease ends; None without pins."""
        return self._soonest

    def issue(self, request_id: str, blocks: list[int], now: float) -> None:
        """Keep held blocks for one lease."""
        expires = now + self._lease_s
        self._pins[request_id] = _Pin(blocks, expires)
        self._soonest = expires if self._soonest is None else min(self._soonest, expires)
        self.counters.issued += 1

    def read(self, request_id: str, blocks: Sequence[int]) -> list[Content]:
        """What is in the blocks that a decode engine names; ends the pin when it is alive.

        Raises IndexError when this engine has no such block.
        """
        contents = [self._pool.read(block) for block in blocks]
        if self._end(request_id, _End.TAKEN):
            self.counters.pulled += 1
        elif (end := self._ended.get(request_id)) is None:
            self.counters.unknown += 1
        elif end is _End.EXPIRED:
            self.counters.late += 1
        else:
            self.counters.reused += 1
        return contents

    def hand_back(self, request_id: str) -> None:
        """A decode engine will not read the blocks."""
        if self._end(request_id, _End.TAKEN):
            self.counters.returned += 1
        else:
            self.counters.stray += 1

    def beat(self, request_ids: Iterable[str], now: float) -> None:
        """Somebody still wants these; unknown ones are ignored."""
        for request_id in request_ids:
            pin = self._pins.get(request_id)
            if pin is not None:
                pin.expires = max(pin.expires, now + self._lease_s * 2 / 3)
                self.counters.heartbeats += 1

    def expire(self, now: float) -> None:
        """Let go of the blocks whose lease has ended."""
        if self._soonest is None or now < self._soonest:
            return
        for request_id in [name for name, pin in self._pins.items() if now >= pin.expires]:
            self._end(request_id, _End.EXPIRED)
            self.counters.expired += 1
        self._soonest = min((pin.expires for pin in self._pins.values()), default=None)

    def _end(self, request_id: str, end: _End) -> bool:
        """Let go of one pin; False when it is not alive."""
        pin = self._pins.pop(request_id, None)
        if pin is None:
            return False
        self._pool.release(pin.blocks)
        self._ended[request_id] = end
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)
        if not self._pins:
            self._soonest = None
        return True
