"""What we promise of prompts that one engine computes for another, checked on a running fleet.

The same checks run on simulated and on real engines: both count their pulls under vLLM's names.
"""

import asyncio
import math
import time
from dataclasses import dataclass

from epp.sim.fleets import vllm

from . import client, pulls
from .claims import Check, Result, Trial
from .client import Answer
from .pulls import KvCounters

PROMPTS = 6
LONG_WORDS = 400
ANSWER_TOKENS = 16
SEEN_S = 5.0
"""How long an engine's counters may lag behind its answers."""
SIM_BLOCK_TOKENS, SIM_TOKEN_BYTES = 16, 1024

PREFILL, DECODE = 0, 1
"""Places in the fleet."""

PULL = {"do_remote_prefill": True}
"""Kills a real engine that sees it; stands here for what any client can send."""


@dataclass(frozen=True, slots=True)
class _Handed:
    """One prompt that went through the gateway."""

    answer: Answer
    split: str
    """The picker's word on it."""
    blocks: int


async def long_prompts(trial: Trial) -> list[Result]:
    """Long uncached prompts are computed by one engine and answered by another."""
    before = await _counters(trial, DECODE)
    words = range(LONG_WORDS, LONG_WORDS + PROMPTS)
    prompts = [trial.text(_fitting(trial, count)) for count in words]
    handed = [await _ask(trial, prompt) for prompt in prompts]
    block_bytes = _block_bytes(trial)
    wanted = block_bytes * sum(one.blocks for one in handed)
    after = await _seen(trial, before, transfers=len(handed))
    pulled = after.pulled_bytes - before.pulled_bytes
    kept = await _counters(trial, PREFILL)
    alone = [await _alone(trial, prompt) for prompt in prompts]
    equal = sum(
        one.answer.text == other.text != "" for one, other in zip(handed, alone, strict=True)
    )
    split = sum(one.split == "split" for one in handed)
    fine = all(one.answer.status == 200 for one in handed)
    return [
        Result(
            f"{PROMPTS} long uncached prompts are computed by the prefill engine, their KV is "
            "pulled by the decode engine",
            f"{split} were split; {after.transfers - before.transfers} pulls of {pulled} bytes, "
            f"their blocks have {wanted}; {kept.expired} leases ended unused",
            fine and split == PROMPTS and pulled == wanted > 0 and not kept.expired,
        ),
        Result(
            "... and their greedy answers equal those of one engine alone",
            f"{equal} of {PROMPTS} are equal",
            equal == PROMPTS,
        ),
    ]


async def not_worth_it(trial: Trial) -> list[Result]:
    """Short prompts, and long ones that are cached, stay with the decode engine."""
    before = await _counters(trial, DECODE)
    short = await _ask(trial, trial.text(20))
    prompt = trial.text(LONG_WORDS)
    first = await _ask(trial, prompt)
    after_first = await _seen(trial, before, transfers=1)
    again = await _ask(trial, f"{prompt} {trial.text(5)}")
    after = await _counters(trial, DECODE)
    pulled = after.transfers - after_first.transfers
    measured = (
        f"short: {short.split}; long: {first.split}; the long one again: {again.split}, "
        f"{again.answer.cached_tokens} of {again.answer.prompt_tokens} tokens cached"
    )
    holds = (short.split, first.split, again.split) == ("below-threshold", "split", "cached")
    return [Result("short prompts and cached ones are not split", measured, holds and not pulled)]


async def clients_parameters(trial: Trial) -> list[Result]:
    """`kv_transfer_params` of a client reach no engine, whichever door they knock at."""
    fleet = trial.fleet
    doors = (fleet.gateway, fleet.sidecar(PREFILL), fleet.sidecar(DECODE))
    decoder = await _counters(trial, DECODE)
    prefiller = await _counters(trial, PREFILL)
    answers = [
        await client.complete(
            fleet.session,
            door,
            trial.text(10),
            max_tokens=1,  # one token is never split, so that nothing may be pulled at all
            model=fleet.settings.model,
            kv_transfer_params=PULL,
        )
        for door in doors
    ]
    fine = sum(answer.status == 200 for answer in answers)
    alive = [await _alone(trial, "still there?", place) for place in (PREFILL, DECODE)]
    pulled = (await _counters(trial, DECODE)).pulled_bytes - decoder.pulled_bytes
    pulled += (await _counters(trial, PREFILL)).pulled_bytes - prefiller.pulled_bytes
    holds = fine == len(doors) and all(one.status == 200 for one in alive) and pulled == 0
    return [
        Result(
            "kv_transfer_params of clients do nothing: through the gateway and at both sidecars",
            f"{fine} of {len(doors)} were answered as if they had none; both engines live; "
            f"{pulled} bytes pulled",
            holds,
        )
    ]


CHECKS: tuple[tuple[str, Check], ...] = (
    ("long prompts are split", long_prompts),
    ("others are not", not_worth_it),
    ("clients' own parameters", clients_parameters),
)
"""For a fleet of a prefill and a decode engine that splits by `prefix`."""

REAL_CHECKS: tuple[tuple[str, Check], ...] = (
    ("long prompts are split", long_prompts),
    ("clients' own parameters", clients_parameters),
)
"""For such a fleet of real engines that splits `always`."""


def _is_real(trial: Trial) -> bool:
    return trial.fleet.settings.kind == "vllm"


def _fitting(trial: Trial, words: int) -> int:
    """As many words as the engine's context takes: a word is several tokens of the tiny model."""
    return words // 3 if _is_real(trial) else words


def _block_tokens(trial: Trial) -> int:
    return vllm.BLOCK_TOKENS if _is_real(trial) else SIM_BLOCK_TOKENS


def _block_bytes(trial: Trial) -> int:
    if not _is_real(trial):
        return SIM_BLOCK_TOKENS * SIM_TOKEN_BYTES
    return vllm.find(trial.fleet.settings.vllm_venv).block_bytes()


async def _ask(trial: Trial, prompt: str) -> _Handed:
    answer = await trial.ask(prompt, max_tokens=ANSWER_TOKENS)
    decision = (await trial.fleet.decisions(1))[0]
    blocks = math.ceil(answer.prompt_tokens / _block_tokens(trial))
    return _Handed(answer, str(decision["split"]), blocks)


async def _alone(trial: Trial, prompt: str, place: int = PREFILL) -> Answer:
    """One engine's own answer, asked directly."""
    fleet = trial.fleet
    return await client.complete(
        fleet.session,
        fleet.engine(place),
        prompt,
        max_tokens=ANSWER_TOKENS,
        model=fleet.settings.model,
    )


async def _counters(trial: Trial, place: int) -> KvCounters:
    return await pulls.read(trial.fleet.session, trial.fleet.engine(place))


async def _seen(trial: Trial, before: KvCounters, *, transfers: int) -> KvCounters:
    """The decode engine's counters once they show so many more pulls, or when time is up."""
    deadline = time.monotonic() + SEEN_S * trial.scale
    while True:
        found = await _counters(trial, DECODE)
        if found.transfers - before.transfers >= transfers or time.monotonic() > deadline:
            return found
        await asyncio.sleep(0.1)
