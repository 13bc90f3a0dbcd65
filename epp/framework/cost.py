"""What a request costs at each endpoint, in seconds: its own, and those that it takes from others.

Pure. One model behind the scorer and the decider that go by cost, and for plugins of others.

Of one endpoint, with its speeds (`Speeds`):

- *wait*: prompt tokens that are computed before this request's, at the prefill speed. Ours are
  counted as charged, less what was cached; a waiting request that is not ours counts
  `queued_tokens`.
- *compute*: tokens of this prompt that the endpoint does not hold, at the prefill speed.
- *slowdown*: every step of this answer grows with the answers beside it (`batch_growth` of a step
  each) and with the KV that attention has to read (seconds per block).
- *pressure*: blocks that are not free have to be given back by others first. In one usual answer's
  time all blocks of a full engine are given back once.
- *transfer*: where the endpoint computes the prompt for another one (`Request.peer`): what that one
  lacks travels there. No answer is written here then. Where that other one computes it for the
  endpoint (`Request.prefilled`), what the endpoint lacks travels here, and nothing is computed.
- *stall* and *crowding*: seconds that others lose. Each running answer stands still while this
  prompt is computed, and its steps grow while this answer is written: a second of each counts
  `harm` of one's own. Whoever comes next waits for the prompt as well, which counts `coming`.
- *herd*: an endpoint that was given more than `twin_share` times its even share of the requests of
  this very prompt lately, and more than `few_twins`, saves nothing by what it holds of the prompt:
  load decides about the rest of a burst, however long its prompt is. Each request beyond that
  costs as much again, so that speeds that were measured wrong bend it, no more. Others that have
  computed the prompt once for such a burst take part in it. No part of `prompt`.

What is not known of an endpoint counts as at the busiest candidate that says it, so that nobody is
best by ignorance; where nobody says it, our own reservations decide alone. An overloaded one
changes nothing among the rest (fault B12).

Speeds are measured under load, so that equal engines look as unequal as their work is just then.
A speed counts as the middle one of all candidates, as far as it is no more than `alike` times
larger or smaller. An endpoint with nothing to do is never taken for more than `slowest` times
slower than the fastest candidate: a bad measurement is tried again before it starves its endpoint.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, isnan

import numpy as np
from numpy.typing import NDArray

from .candidates import Candidates, Column
from .types import Endpoint, EndpointId, Request

_USUAL_BLOCKS = 8192.0
"""KV blocks of an engine that never said how many it has."""
_MOST_S = 1e9
_ZERO = np.array(0.0)
"""Python's own would be converted at each step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRules:
    """What the model assumes. Raises ValueError for what makes no sense."""

    answer_tokens: int = 128
    """Answers are expected to be this long where the request allows more, which most do."""
    queued_tokens: int = 1024
    """Prompt tokens to compute for a waiting request that is not ours."""
    usual_tokens: int = 3072
    """Answers beside this one are taken to hold as much as it does, at most this, unless the
    endpoint's own report says more: blocks that several share are reported once, read by each."""
    batch_growth: float = 0.01
    harm: float = 0.1
    coming: float = 0.5
    slowest: float = 8.0
    alike: float = 1.5
    few_twins: int = 8
    twin_share: float = 1.2

    def __post_init__(self) -> None:
        for name in ("answer_tokens", "queued_tokens", "usual_tokens", "few_twins"):
            if getattr(self, name) < 1:
                raise ValueError(f"{_spelled(name)} must be at least 1")
        if not 0.0 <= self.batch_growth <= 1.0:
            raise ValueError("batchGrowth must lie between 0 and 1")
        for name in ("harm", "coming"):
            if not (isfinite(getattr(self, name)) and getattr(self, name) >= 0.0):
                raise ValueError(f"{name} must be finite and not below 0")
        for name in ("slowest", "alike", "twin_share"):
            if not (isfinite(getattr(self, name)) and getattr(self, name) >= 1.0):
                raise ValueError(f"{_spelled(name)} must be finite and at least 1")


PARTS = ("wait", "compute", "transfer", "stall", "slowdown", "pressure", "crowding", "herd")
"""What a cost is the sum of. The first four come of computing the prompt there, the rest of writing
the answer there."""
_WAIT, _COMPUTE, _TRANSFER, _STALL, _SLOWDOWN, _PRESSURE, _CROWDING, _HERD = range(len(PARTS))
_OF_PROMPT = 4
Seconds = NDArray[np.float64]
"""A row for each of `PARTS`."""


class Cost:
    """Seconds at each candidate, in their order; finite, never below 0. See the module.

    One array with a row for each of `PARTS`, 0 until it is written, so that a sum is one step. Each
    part is an attribute, too.
    """

    __slots__ = ("_seconds",)

    wait: Column
    compute: Column
    transfer: Column
    stall: Column
    slowdown: Column
    pressure: Column
    crowding: Column
    herd: Column

    def __init__(self, seconds: Seconds) -> None:
        self._seconds = seconds

    def __getattr__(self, part: str) -> Column:
        if part not in PARTS:
            raise AttributeError(part)
        row: Column = self._seconds[PARTS.index(part)]
        return row

    @property
    def prompt(self) -> Column:
        return _summed(self._seconds[:_OF_PROMPT])

    @property
    def total(self) -> Column:
        return _summed(self._seconds)

    def parts(self, row: int) -> dict[str, float]:
        """One candidate's seconds by their names."""
        return dict(zip(PARTS, self._seconds[:, row].tolist(), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Seconds at each candidate, in their order; finite, never below 0."""

    first_token: Column
    """Until the answer begins: wait, compute, transfer and pressure."""
    next_token: Column
    """From one token of the answer to the next: a step, as slow as others make it. 0 where no
    answer is written."""


class _Engines:
    """What the candidates have to do and how fast they are, with unknown numbers filled in.

    There is one candidate at least.
    """

    __slots__ = (
        "ahead",
        "answering",
        "block_s",
        "block_tokens",
        "blocks",
        "busy",
        "credited",
        "in_use",
        "prefill_speed",
        "step_s",
    )

    def __init__(self, candidates: Candidates, rules: CostRules) -> None:
        waiting, running, total, active, pending, requests, prompts, *rest = candidates.columns(
            "waiting",
            "running",
            "total_blocks",
            "active_blocks",
            "reserved_pending",
            "reserved_requests",
            "reserved_prefill_tokens",
            "reserved_decode_blocks",
            "prefill_tokens_per_s",
            "decode_s_per_token",
            "decode_s_per_block",
            "block_tokens",
            "credited_tokens",
        )
        reserved, speed, step_s, self.block_s, self.block_tokens, self.credited = rest
        waiting = _known(waiting, 0.0)  # as reported; ours among them
        foreign = np.maximum(waiting - pending, _ZERO)
        self.ahead = prompts + foreign * rules.queued_tokens
        """Prompt tokens that are computed before this request's."""
        self.answering = np.maximum(_known(running, 0.0), requests - pending)
        self.busy = self.answering + np.maximum(waiting, pending)
        """Requests that are there, whatever they do."""
        self.blocks = _known(total, _USUAL_BLOCKS)
        if isnan(_most(active)):
            usage = _known(candidates.column("kv_usage"), 0.0) * self.blocks
            active = np.where(np.isnan(active), usage, active)
        self.in_use = active + reserved
        self.prefill_speed = _believed(speed, self.busy, rules, np.maximum)
        self.step_s = _believed(step_s, self.busy, rules, np.minimum)


def cost(request: Request, candidates: Candidates, rules: CostRules) -> Cost:
    """What this request costs at each of the candidates."""
    seconds = np.zeros((len(PARTS), len(candidates)))
    if candidates:
        _fill(seconds, request, candidates, rules, _Engines(candidates, rules))
    return Cost(seconds)


def expected(request: Request, candidates: Candidates, rules: CostRules) -> Expected:
    """What the client of this request waits for at each of the candidates."""
    seconds = np.zeros((len(PARTS), len(candidates)))
    parts = Cost(seconds)
    step, answer = parts.slowdown, _answer(request, rules)
    if candidates:
        engines = _Engines(candidates, rules)
        _fill(seconds, request, candidates, rules, engines)
        if answer > 0:
            step = engines.step_s + step / answer
    return Expected(
        first_token=np.minimum(
            parts.wait + parts.compute + parts.transfer + parts.pressure, _MOST_S
        ),
        next_token=np.minimum(step, _MOST_S),
    )


def _answer(request: Request, rules: CostRules) -> int:
    """Tokens that are written where the request goes."""
    if request.peer is not None and not request.prefilled:
        return 0
    return min(request.output_tokens, rules.answer_tokens)


def _fill(
    seconds: Seconds, request: Request, candidates: Candidates, rules: CostRules, engines: _Engines
) -> None:
    """Write the parts that are not 0. A step over all candidates costs by the step more than by the
    candidate."""
    prompt, answer = request.prompt_tokens, _answer(request, rules)
    speed, busy, credited = engines.prefill_speed, engines.busy, engines.credited
    lacks = np.maximum(prompt - credited, _ZERO)
    weight = rules.coming + rules.harm * engines.answering
    np.divide(engines.ahead, speed, seconds[_WAIT])
    if not request.prefilled:
        compute = np.divide(lacks, speed, seconds[_COMPUTE])
        np.multiply(weight, compute, seconds[_STALL])
    if answer > 0:
        crowd = busy * (min(prompt + answer, rules.usual_tokens) / engines.block_tokens)
        growth = busy * (engines.step_s * rules.batch_growth)
        read_s = engines.block_s * np.maximum(engines.in_use, crowd)
        np.multiply(growth + read_s, answer, seconds[_SLOWDOWN])
        np.multiply(growth + engines.block_s * crowd, rules.harm * answer, seconds[_CROWDING])
    _press(engines, lacks, answer, rules, out=seconds[_PRESSURE])
    if request.peer is not None:
        seconds[_TRANSFER] = _transfer(request, request.peer, candidates, lacks)
    if request.twins and max(request.twins.values()) >= rules.few_twins:
        saved = np.minimum(credited, prompt) / speed
        beyond = _beyond(request.twins, candidates, rules)
        np.multiply(beyond, (1.0 + weight) * saved, seconds[_HERD])


def _beyond(twins: Mapping[EndpointId, int], candidates: Candidates, rules: CostRules) -> Column:
    """Equal requests at each that are more than it should be given, with this one."""
    ids = candidates.ids
    given = np.fromiter((twins.get(ident, 0) for ident in ids), np.float64, len(ids))
    fair = rules.twin_share * (float(np.add.reduce(given)) + 1.0) / max(1, len(ids))
    beyond: Column = np.maximum(given + 1.0 - max(float(rules.few_twins), fair), _ZERO)
    return beyond


def _press(engines: _Engines, lacks: Column, answer: int, rules: CostRules, *, out: Column) -> None:
    """Seconds until the blocks that this request lacks have been given back."""
    short = engines.in_use + (lacks + answer) / engines.block_tokens - engines.blocks
    if _most(short) > 0.0:
        answer_s = rules.answer_tokens * engines.step_s
        blocks = np.maximum(engines.blocks, 1.0)
        np.divide(answer_s * np.maximum(short, _ZERO), blocks, out)


def _transfer(request: Request, peer: Endpoint, candidates: Candidates, lacks: Column) -> Column:
    """Seconds for what the destination lacks to come over from each candidate; or from the peer,
    for what each candidate lacks."""
    speed = np.minimum(candidates.column("pull_tokens_per_s"), peer.speeds.pull_tokens_per_s)
    moved = lacks if request.prefilled else peer.match.missing(request.prompt_tokens)
    seconds: Column = peer.speeds.pull_s + moved / speed
    return seconds


def _believed(measured: Column, busy: Column, rules: CostRules, faster: np.ufunc) -> Column:
    """Speeds or times, drawn to the middle one by as much as chance explains, and those that have
    nothing to do no slower than the limit. `faster` gives the faster of two."""
    lowest, highest = measured.item(measured.argmin()), _most(measured)
    if lowest == highest:
        return measured
    half, alike = len(measured) // 2, rules.alike
    ordered = measured.copy()
    ordered.partition(half)
    middle = ordered.item(half)
    if highest / alike <= middle <= lowest * alike:
        ordered.fill(middle)
        return ordered
    drawn: Column = np.minimum(np.maximum(middle, measured / alike), measured * alike)
    least = min(max(middle, lowest / alike), lowest * alike)
    most = min(max(middle, highest / alike), highest * alike)
    if most <= rules.slowest * least:
        return drawn
    limit = most / rules.slowest if faster is np.maximum else least * rules.slowest
    return np.where(busy == 0.0, faster(drawn, limit), drawn)


def _summed(seconds: Column) -> Column:
    total: Column = np.add.reduce(seconds)
    if len(total) and _most(total) > _MOST_S:
        return np.minimum(total, _MOST_S)
    return total


def _most(column: Column) -> float:
    """The largest number of one at least, NaN where there is one among them. Takes a third of what
    numpy's own reduction takes."""
    return column.item(column.argmax())


def _known(column: Column, else_all: float) -> Column:
    """Unknown numbers as the largest known one, or as `else_all` where none is known."""
    if not isnan(_most(column)):
        return column
    largest = float(np.fmax.reduce(column))
    return np.where(np.isnan(column), else_all if isnan(largest) else largest, column)


def _spelled(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)
