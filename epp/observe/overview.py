"""What is known of a pool just now, for people and for `epp top`: one JSON object."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from epp.state.endpoints import EndpointStatus
from epp.state.pool import PoolState
from epp.state.reservation import NONE, Sums

from .state_numbers import StateNumbers


def endpoints(
    members: Sequence[EndpointStatus],
    ours: Mapping[Any, Sums],
    alarms: Mapping[str, Sequence[str]],
) -> list[dict[str, Any]]:
    """Each member. `ours`: our own reservations by life; `alarms`: what is wrong, by endpoint."""
    return [
        _endpoint(one, ours.get(one.incarnation, NONE), alarms.get(str(one.member.id), ()))
        for one in members
    ]


def page(pool: PoolState, numbers: StateNumbers, *, mode: str, now: float) -> dict[str, Any]:
    """The pool with its members. What has no numbers is null."""
    members = pool.overview(now)
    store, scraper, sharing, watch = numbers.store, numbers.scraper, numbers.sharing, numbers.watch
    alarms = {} if watch is None else watch.by_endpoint()
    return {
        "pool": str(pool.pool),
        "mode": mode,
        "endpoints": endpoints(members, pool.reserved(), alarms),
        "alarms": {} if watch is None else {k: n for k, n in watch.active.items() if n},
        "events": dict(sorted(pool.counts.items())),
        "index_blocks": sum(one.blocks for one in members),
        "sizes": dict(pool.sizes),
        "limited": dict(pool.limited),
        "store_connected": None if store is None else store.connected,
        "log_lag_s": None if store is None else store.lag_s,
        "scraped": None if scraper is None else scraper.active,
        "replicas": None if sharing is None else sharing.replicas,
    }


def _endpoint(status: EndpointStatus, ours: Sums, alarms: Sequence[str]) -> dict[str, Any]:
    member, endpoint = status.member, status.endpoint
    return {
        "endpoint": str(member.id),
        "address": member.address,
        "role": str(member.role) or None,
        "start_ms": status.incarnation.start_ms,
        "ready": status.ready,
        "rung": status.rung.name.lower(),
        "events": status.events,
        "blocks": status.blocks,
        "trust": round(status.trust, 4),
        "record_age_s": status.record_age_s,
        "load": msgspec.to_builtins(endpoint.load),
        "reserved_here": ours.requests,
        "reserved_elsewhere": status.elsewhere,
        "prefill_tokens_per_s": round(endpoint.speeds.prefill_tokens_per_s, 1),
        "decode_s_per_token": round(endpoint.speeds.decode_s_per_token, 6),
        "alarms": list(alarms),
    }
