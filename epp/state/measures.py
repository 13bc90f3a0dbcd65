"""What is known of the load on one life of an engine: as a value, and as a row of numbers.

Both say the same; a test holds them together. The row is raw: whoever reads it drops what is stale.
"""

from dataclasses import dataclass
from math import isnan

from epp.framework import Load, Lora

from .pace import PRIOR_PREFILL_TOKENS_PER_S
from .reservation import Life

WAITING, RUNNING, KV_USAGE, ACTIVE_BLOCKS = range(4)
"""Places in a row of what only a fresh report says; NaN where it does not."""
TOTAL_BLOCKS, BLOCK_TOKENS, REQUESTS, PENDING, PREFILL_TOKENS, DECODE_BLOCKS = range(4, 10)
OWN_SPEED = 10
"""Observed prefill speed of this life, tokens per second; NaN before it was observed."""
STEP_S, BLOCK_S = 11, 12
"""Observed seconds of a step of this life, and what a block in use adds; NaN likewise."""
REPORT_AT = 13
"""When the report was received; NaN without one."""
WIDTH = 14

_NAN = float("nan")
_UNKNOWN = Load()
EMPTY: tuple[float, ...] = (
    *(_NAN,) * 5,
    float(_UNKNOWN.block_tokens),
    *(0.0,) * 4,
    *(_NAN,) * 4,
)
"""The row of a life of which nobody has said anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRules:
    stale_s: float = 2.0
    """A report older than this says nothing."""
    max_reservations: int = 100_000
    """Further decisions are routed, but not charged."""
    done_cap_s: float = 900.0
    """After the stream, wait this long for the sidecar's `done`, then estimate."""
    prefill_tokens_per_s: float = PRIOR_PREFILL_TOKENS_PER_S
    """Prefill speed until something was observed."""
    duration_prior_s: float = 60.0
    """The pool's p99 duration until something was observed."""
    default_block_tokens: int = 16
    """Engine block size until a report says it."""


def block_tokens(life: Life, rules: LoadRules) -> int:
    """Tokens in a block of its engine."""
    known = life.report.block_tokens if life.report is not None else None
    return known or rules.default_block_tokens


def reserved(life: Life, now: float) -> tuple[int, int, int, int]:
    """By all replicas, in the order of `Sums`; drained prefills have been taken out of our own."""
    others = life.others
    return (
        len(life.requests) + others.requests,
        life.pending + others.pending,
        life.remaining_prefill(now) + life.remaining_elsewhere(now),
        life.decode_blocks + others.decode_blocks,
    )


def load_of(life: Life, rules: LoadRules, now: float) -> Load:
    """The load as a decision sees it; its drained prefills have been taken out."""
    report = life.report
    requests, pending, prefill_tokens, decode_blocks = reserved(life, now)
    if report is None:
        return Load(
            reserved_requests=requests,
            reserved_pending=pending,
            reserved_prefill_tokens=prefill_tokens,
            reserved_decode_blocks=decode_blocks,
        )
    age = max(0.0, now - life.report_at)
    fresh = age <= rules.stale_s
    usage, total = report.kv_usage, report.total_blocks
    active = usage * total if fresh and usage is not None and total is not None else None
    return Load(
        waiting=report.waiting if fresh else None,
        running=report.running if fresh else None,
        kv_usage=usage if fresh else None,
        active_blocks=active,
        total_blocks=total,
        block_tokens=block_tokens(life, rules),
        lora=report.lora if fresh else None,
        age_s=age,
        reserved_requests=requests,
        reserved_pending=pending,
        reserved_prefill_tokens=prefill_tokens,
        reserved_decode_blocks=decode_blocks,
    )


def row_of(life: Life, rules: LoadRules, now: float) -> tuple[float, ...]:
    """The same, whatever the report's age, with the speeds that were observed."""
    report, speed, steps = life.report, life.pace.prefill.measured, life.pace.decoding.measured
    ours = map(float, reserved(life, now))
    own = (
        _number(speed),
        _NAN if steps is None else steps.base_s,
        _NAN if steps is None else _number(steps.block_s),
    )
    if report is None:
        return (*EMPTY[:REQUESTS], *ours, *own, _NAN)
    usage, total = report.kv_usage, report.total_blocks
    active = _NAN if usage is None or total is None else usage * total
    return (
        _number(report.waiting),
        _number(report.running),
        _number(usage),
        active,
        _number(total),
        float(block_tokens(life, rules)),
        *ours,
        *own,
        life.report_at,
    )


def load_from(row: tuple[float, ...], lora: Lora | None, now: float) -> Load:
    """The value that a row stands for; what is stale in it is NaN already, and `lora` None."""
    waiting, running, usage, active, total, block = row[:REQUESTS]
    requests, pending, prefill, decode = row[REQUESTS:OWN_SPEED]
    at = row[REPORT_AT]
    return Load(
        waiting=_count(waiting),
        running=_count(running),
        kv_usage=_known(usage),
        active_blocks=_known(active),
        total_blocks=_count(total),
        block_tokens=int(block),
        lora=lora,
        age_s=None if isnan(at) else max(0.0, now - at),
        reserved_requests=int(requests),
        reserved_pending=int(pending),
        reserved_prefill_tokens=int(prefill),
        reserved_decode_blocks=int(decode),
    )


def _known(number: float) -> float | None:
    return None if isnan(number) else number


def _count(number: float) -> int | None:
    return None if isnan(number) else int(number)


def _number(value: float | None) -> float:
    return _NAN if value is None else float(value)
