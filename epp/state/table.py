"""The members of a pool as rows of numbers, kept up to date by what has changed since last time.

A decision over a thousand endpoints has no time to ask each of them for its load. So the numbers
stand side by side in columns: reading them again costs as much as there was news. Arrays that were
handed out are never written to again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from epp.framework import (
    NO_MATCH,
    Candidates,
    Column,
    Endpoint,
    EndpointId,
    Incarnation,
    Lora,
    Mask,
    Speeds,
)

from . import measures
from .charges import Trusts
from .endpoints import Endpoints, Member
from .load import LoadBook
from .matching import Matches
from .mirror import Mirror

_LOADS = (
    "waiting",
    "running",
    "kv_usage",
    "active_blocks",
    "total_blocks",
    "block_tokens",
    "reserved_requests",
    "reserved_pending",
    "reserved_prefill_tokens",
    "reserved_decode_blocks",
    "prefill_tokens_per_s",
    "decode_s_per_token",
    "decode_s_per_block",
)
"""Columns of a decision, in the order of the first numbers of a row in `measures`."""
_PRIOR = Speeds()
_PRIORS = ("pull_tokens_per_s",)
_SPEEDS = slice(measures.OWN_SPEED, measures.BLOCK_S + 1)
_REPORTED = measures.ACTIVE_BLOCKS + 1
"""The first so many are known from fresh reports only."""

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Seats:
    """Who is who; replaced as a whole."""

    members: tuple[Member, ...] = ()
    lives: tuple[Incarnation, ...] = ()
    rows: Mapping[Incarnation, int] = field(default_factory=dict[Incarnation, int])
    ids: tuple[EndpointId, ...] = ()
    addresses: tuple[str, ...] = ()
    labels: tuple[Mapping[str, str], ...] = ()
    fixed: Mapping[str, Column] = field(default_factory=dict[str, Column])
    """Columns that do not change: roles, and speeds that nobody has observed."""

    @classmethod
    def of(cls, rows: Iterable[tuple[Member, Incarnation]]) -> "_Seats":
        seated = list(rows)
        members = tuple(member for member, _ in seated)
        lives = tuple(inc for _, inc in seated)
        roles = [member.role for member in members]
        return cls(
            members=members,
            lives=lives,
            rows={inc: row for row, inc in enumerate(lives)},
            ids=tuple(member.id for member in members),
            addresses=tuple(member.address for member in members),
            labels=tuple(member.labels for member in members),
            fixed={
                "serves_decode": _shared(role.serves_decode for role in roles),
                "serves_prefill": _shared(role.serves_prefill for role in roles),
                "serves_encode": _shared(role.serves_encode for role in roles),
                **{name: _shared([getattr(_PRIOR, name)] * len(roles)) for name in _PRIORS},
            },
        )


@dataclass(slots=True)
class _Shown:
    """The numbers of one moment, as decisions see them."""

    seats: _Seats
    numbers: Numbers
    loras: tuple[Lora | None, ...]
    columns: Mapping[str, Column]

    def endpoint(self, row: int, matches: Matches | None, now: float) -> Endpoint:
        member = self.seats.members[row]
        numbers = tuple(self.numbers[:, row].tolist())
        return Endpoint(
            id=member.id,
            address=member.address,
            incarnation=self.seats.lives[row],
            role=member.role,
            labels=member.labels,
            has_sidecar=member.has_sidecar,
            load=measures.load_from(numbers, self.loras[row], now),
            match=NO_MATCH if matches is None else matches.of(row),
            speeds=Speeds(
                prefill_tokens_per_s=numbers[measures.OWN_SPEED],
                decode_s_per_token=numbers[measures.STEP_S],
                decode_s_per_block=numbers[measures.BLOCK_S],
            ),
        )


_NONE = np.empty((measures.WIDTH, 0))


class Table:
    """Belongs to one PoolState, which owns the parts. `refresh` before reading."""

    def __init__(
        self, *, endpoints: Endpoints, load: LoadBook, trust: Trusts, mirror: Mirror
    ) -> None:
        self._endpoints = endpoints
        self._load = load
        self._trust = trust
        self._mirror = mirror
        self._version = endpoints.version - 1
        self._seats = _Seats()
        self._row_of: dict[EndpointId, int] = {}
        self._numbers: Numbers = _NONE
        self._loras: list[Lora | None] = []
        self._speeds = (0.0, 0.0, 0.0)
        self._usual = np.zeros((len(self._speeds), 1))
        """The same, as a column."""
        self._oldest = np.inf
        """No fresh report is from before that."""
        self._some_stale = False
        self._shown = _Shown(self._seats, _NONE, (), {})
        self._trusts: Column = np.empty(0)
        self._heard: Column = np.empty(0)
        self._unready: tuple[int, ...] = ()
        self._ready: NDArray[np.intp] | None = None

    @property
    def lives(self) -> tuple[Incarnation, ...]:
        """Of all members, ready or not; the same tuple until one of them changes."""
        return self._seats.lives

    @property
    def trusts(self) -> Column:
        """What a predicted token is worth on each of them."""
        return self._trusts

    @property
    def prefill_speeds(self) -> Column:
        """Tokens that each of them computes in a second, as observed or usual in the pool."""
        return self._shown.columns["prefill_tokens_per_s"]

    def fresh(self, now: float) -> Mask:
        """Where a writer was heard lately."""
        return now - self._heard <= self._mirror.fresh_s

    def refresh(self, now: float) -> None:
        """Read what has changed."""
        news = False
        if self._version != self._endpoints.version:
            self._reseat(now)
            news = True
        changed = self._load.changed(now)
        if changed:
            self._read_loads(changed, now)
            news = True
        speeds = self._load.pool_speeds
        if news or speeds != self._speeds or now - self._oldest > self._load.rules.stale_s:
            if speeds != self._speeds:
                self._speeds, self._usual = speeds, np.array(speeds)[:, None]
            self._show(now)
        self._read_trust(self._trust.changed())
        self._read_heard(self._mirror.heard())
        unready = self._endpoints.unready(now)
        if news or unready != self._unready:
            self._unready, self._ready = unready, None
            if unready:
                every = np.arange(len(self._seats.members), dtype=np.intp)
                self._ready = np.delete(every, unready)

    def candidates(self, now: float, matches: Matches | None = None) -> Candidates:
        """The ready members; `matches` has a row for each member."""
        shown, seats = self._shown, self._seats
        columns = dict(shown.columns)
        if matches is not None:
            columns.update(matches.columns())
        whole = Candidates(
            len(seats.members),
            lambda row: shown.endpoint(row, matches, now),
            columns,
            ids=seats.ids,
            labels=seats.labels,
            addresses=seats.addresses,
            loras=shown.loras,
        )
        return whole if self._ready is None else whole.take(self._ready, "not ready")

    def every(self, now: float) -> list[Endpoint]:
        """All members, ready or not, in their order, without matches."""
        shown = self._shown
        return [shown.endpoint(row, None, now) for row in range(len(self._seats.members))]

    def at(self, address: str, now: float) -> Endpoint | None:
        """The member behind an address, ready or not, without a match."""
        addresses = self._seats.addresses
        if address not in addresses:
            return None
        return self._shown.endpoint(addresses.index(address), None, now)

    # Mechanics

    def _reseat(self, now: float) -> None:
        """Other members or other lives: keep the numbers of those that stay."""
        old = self._seats.rows
        self._version = self._endpoints.version
        self._seats = _Seats.of(self._endpoints.rows())
        lives, ids = self._seats.lives, self._seats.ids
        kept = [old.get(inc, -1) for inc in lives]  # the last column is nobody's
        self._numbers = np.column_stack((self._numbers, measures.EMPTY))[:, kept]
        self._loras = [self._loras[place] if place >= 0 else None for place in kept]
        self._read_loads([inc for inc, place in zip(lives, kept, strict=True) if place < 0], now)
        self._trusts, self._heard = np.empty(len(ids)), np.empty(len(ids))
        self._row_of = {ident: row for row, ident in enumerate(ids)}
        self._read_trust(ids)
        self._read_heard(ids)

    def _read_loads(self, lives: Iterable[Incarnation], now: float) -> None:
        for inc in lives:
            row = self._seats.rows.get(inc)
            if row is not None:
                numbers, self._loras[row] = self._load.row(inc, now)
                self._numbers[:, row] = numbers
                self._oldest = min(self._oldest, numbers[measures.REPORT_AT])  # or NaN: no report

    def _read_trust(self, changed: Sequence[EndpointId]) -> None:
        if changed:
            self._trusts = self._trusts.copy()
        for ident in changed:
            row = self._row_of.get(ident)
            if row is not None:
                self._trusts[row] = self._trust.of(ident)

    def _read_heard(self, changed: Sequence[EndpointId]) -> None:
        for ident in changed:
            row = self._row_of.get(ident)
            if row is not None:
                at = self._mirror.last_at(ident)
                self._heard[row] = -np.inf if at is None else at

    def _show(self, now: float) -> None:
        """Make what decisions read: without what is stale, and with a speed for everybody."""
        numbers = self._numbers.copy()
        loras = tuple(self._loras)
        stale_s = self._load.rules.stale_s
        if self._some_stale or now - self._oldest > stale_s:
            at = numbers[measures.REPORT_AT]
            stale = now - at > stale_s
            self._some_stale = bool(stale.any())
            numbers[:_REPORTED, stale] = np.nan
            loras = tuple(
                None if old else lora for old, lora in zip(stale.tolist(), loras, strict=True)
            )
            self._oldest = float(np.fmin.reduce(at[~stale], initial=np.inf))
        own = numbers[_SPEEDS]
        np.copyto(own, self._usual, where=np.isnan(own))
        numbers.flags.writeable = False
        columns = dict(zip(_LOADS, numbers, strict=False))
        columns.update(self._seats.fixed)
        self._shown = _Shown(self._seats, numbers, loras, columns)


def _shared(flags: Iterable[bool]) -> Column:
    column = np.array(list(flags), np.float64)
    column.flags.writeable = False
    return column
