"""What is wrong without any request failing: one warning each, and a number until it is mended.

A picker whose engines publish no KV events, or whose keys are other keys than the sidecars', serves
every request; only the prefix cache is used less. So the signs are looked for here:

- `no-events`: prompts repeat on an endpoint whose writer sees no KV events.
- `no-blocks`: prompts repeat there, events are said to be seen, and not one block came: another
  topic, or events that nobody understands.
- `keys-differ`: its engine finds prefixes cached, its events show blocks, and yet not one prompt
  ever matched them: another model name, tokenizer or block size.
- `other-scheme`: sidecars send keys of another scheme or size of blocks: another release.
- `all-stale`: there are endpoints, and not one has a fresh load report.
- `store-away`: the store doesn't answer.

Pure but for the log. A sign counts when it lasts `HOLD_S`; what comes back within `QUIET_S` is told
by the number alone.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from epp.framework import Endpoint, EndpointId, Load, Rung, Source
from epp.state.endpoints import EndpointStatus
from epp.state.records import Done

CHECK_S = 1.0
HOLD_S = 10.0
QUIET_S = 600.0
REPEATS = 20
"""Requests with a repeated prefix that an endpoint served, from which on they should show."""
RECENT = 50
"""Requests of an endpoint that are looked back on."""
LEAST_TOKENS = 128
"""A shorter common beginning may be a chat template's, and two own blocks at most."""

ALARMS = {
    "no-events": "prompts repeat, but the writer sees no KV events: turn them on in the engine "
    "(vLLM: --kv-events-config) and name their port to the sidecar",
    "no-blocks": "prompts repeat, but no block ever came by KV events: compare the topic and the "
    "port of the engine's publisher with the sidecar's, and whether it caches prefixes at all",
    "keys-differ": "the engine finds prefixes cached that never match what its events show: "
    "compare the model name, the tokenizer and the block size of engine, sidecar and picker",
    "other-scheme": "sidecars send block keys of another scheme or block size: they belong to "
    "another release than the picker",
    "all-stale": "no endpoint has a fresh load report: look at the sidecars and at the engines' "
    "metrics pages; until then our own reservations alone say who is busy",
    "store-away": "the store does not answer: decisions go on by what is known, and by load",
}
"""Every alarm, with what to do."""

log = structlog.get_logger(__name__)


class WatchedPool(Protocol):
    """What is looked at."""

    counts: Counter[str]

    def overview(self, now: float, /) -> list[EndpointStatus]: ...


@dataclass(slots=True)
class _Recent:
    """The last requests of one endpoint whose prompt began like an earlier one."""

    repeated: int = 0
    """As many as ended while no block was known there."""
    precise: deque[bool] = field(default_factory=lambda: deque[bool](maxlen=RECENT))
    """Of those that the engine itself found cached: whether its events had shown it."""


@dataclass(slots=True)
class _Sign:
    since: float
    raised: bool = False


class Watch:
    """`done` for each finished request, `check` each second. `active` has what is wrong."""

    def __init__(self, pool: WatchedPool, *, connected: Callable[[], bool] = lambda: True) -> None:
        self._pool = pool
        self._connected = connected
        self._recent: dict[EndpointId, _Recent] = {}
        self._signs: dict[tuple[str, EndpointId | None], _Sign] = {}
        self._quiet: dict[str, float] = {}
        self._schemes = 0
        self._schemes_at = float("-inf")

    @property
    def active(self) -> dict[str, int]:
        """Every alarm, with the endpoints that it is about now; 1 where it is about the pool."""
        found = dict.fromkeys(ALARMS, 0)
        for (alarm, _), sign in self._signs.items():
            found[alarm] += sign.raised
        return found

    def by_endpoint(self) -> dict[str, list[str]]:
        """What is wrong with endpoints, by their names."""
        found: dict[str, list[str]] = {}
        for (alarm, endpoint), sign in self._signs.items():
            if sign.raised and endpoint is not None:
                found.setdefault(str(endpoint), []).append(alarm)
        return found

    def done(self, done: Done, endpoint: Endpoint, predicted_tokens: int) -> None:
        """A hook of `PoolState.on_done`."""
        cached = done.cached_tokens or 0
        if max(cached, predicted_tokens) < LEAST_TOKENS:
            return
        recent = self._recent.setdefault(endpoint.id, _Recent())
        recent.repeated += 1
        if cached >= LEAST_TOKENS:
            recent.precise.append(endpoint.match.source is Source.PRECISE)

    def check(self, now: float) -> None:
        """Look at everything; tell what is newly wrong, and what is right again."""
        members = self._pool.overview(now)
        self._forget({status.member.id for status in members})
        found = set(self._found(members, now))
        for over in self._signs.keys() - found:
            if self._signs.pop(over).raised:
                log.info("mended", alarm=over[0], endpoint=_name(over[1]))
        for key in sorted(found, key=str):
            sign = self._signs.setdefault(key, _Sign(now))
            if not sign.raised and now - sign.since >= HOLD_S:
                sign.raised = True
                self._tell(*key, now)

    def _forget(self, members: set[EndpointId]) -> None:
        for gone in self._recent.keys() - members:
            del self._recent[gone]

    def _found(
        self, members: list[EndpointStatus], now: float
    ) -> Iterator[tuple[str, EndpointId | None]]:
        for status in members:
            sign = self._about(status)
            if sign is not None:
                yield sign, status.member.id
        schemes = self._pool.counts["blocks-other-scheme"]
        if schemes != self._schemes:
            self._schemes, self._schemes_at = schemes, now
        if now - self._schemes_at < 6 * HOLD_S:
            yield "other-scheme", None
        if members and all(_unknown(status.endpoint.load) for status in members):
            yield "all-stale", None
        if not self._connected():
            yield "store-away", None

    def _about(self, status: EndpointStatus) -> str | None:
        recent = self._recent.get(status.member.id)
        if recent is None or status.record_age_s is None:
            return None
        if status.blocks:
            recent.repeated = 0
        elif recent.repeated >= REPEATS:
            return "no-blocks" if status.events else "no-events"
        judged = len(recent.precise) == RECENT and status.rung is Rung.PRECISE and status.blocks > 0
        return "keys-differ" if judged and not any(recent.precise) else None

    def _tell(self, alarm: str, endpoint: EndpointId | None, now: float) -> None:
        """One line for an alarm, whatever number of endpoints has it."""
        if now - self._quiet.get(alarm, float("-inf")) >= QUIET_S:
            self._quiet[alarm] = now
            log.warning(alarm, endpoint=_name(endpoint), do=ALARMS[alarm])


def _unknown(load: Load) -> bool:
    """Nobody says, or said lately, how busy it is."""
    return load.waiting is None and load.running is None and load.kv_usage is None


def _name(endpoint: EndpointId | None) -> str | None:
    return None if endpoint is None else str(endpoint)
