"""What we promise, each promise checked with real requests on a running fleet.

A check returns what was measured in words and whether the promise holds. Limits of time stretch
with `scale`, so that a slow machine does not make a true promise look false.
"""

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp

from epp.errors import EppError
from epp.sim.fleets.fleet import Fleet

from . import client
from .client import Answer, Load, Stream

WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath", "inlet", "jetty")


@dataclass(frozen=True, slots=True)
class Result:
    """One promise and what came of it."""

    claim: str
    measured: str
    holds: bool


@dataclass(frozen=True, slots=True)
class Trial:
    """What every check needs."""

    fleet: Fleet
    rng: random.Random
    scale: float
    """Factor on every limit of time."""

    def text(self, words: int) -> str:
        """A prompt that nobody has sent before."""
        return " ".join(
            self.rng.choice(WORDS) + str(self.rng.randrange(1000)) for _ in range(words)
        )

    async def ask(self, prompt: str, *, max_tokens: int = 1) -> Answer:
        fleet = self.fleet
        return await client.complete(
            fleet.session,
            fleet.gateway,
            prompt,
            max_tokens=max_tokens,
            model=fleet.settings.model,
        )


Check = Callable[[Trial], Awaitable[list[Result]]]

PREFIXES = 8
REPEATS = 3
EVICTED_S = 0.5


async def prefixes(trial: Trial) -> list[Result]:
    """Repeated prefixes land where they are cached, until the engine evicts them."""
    heads = [trial.text(400) for _ in range(PREFIXES)]
    first = [await trial.ask(head) for head in heads]
    if any(answer.status != 200 for answer in first):
        return [Result("repeated prefixes land where they are cached", _statuses(first), False)]
    again = [
        (answer.pod, await trial.ask(f"{head} {trial.text(5)}"))
        for _ in range(REPEATS)
        for head, answer in zip(heads, first, strict=True)
    ]
    landed = sum(pod == answer.pod for pod, answer in again)
    cached = sum(answer.cached_tokens for _, answer in again)
    prompts = sum(answer.prompt_tokens for _, answer in again)
    share = cached / max(1, prompts)
    hits = Result(
        "repeated prefixes land where they are cached",
        f"{landed} of {len(again)} landed there; {share:.0%} of their tokens came from the cache",
        landed == len(again) and share >= 0.8,
    )
    return [hits, await _evicted(trial, heads)]


async def _evicted(trial: Trial, heads: list[str]) -> Result:
    fleet = trial.fleet
    engines = range(fleet.settings.engines)
    for index in engines:
        url = f"{fleet.engine(index)}/admin/evict"
        async with fleet.session.post(url, json={"all": True}) as answer:
            answer.raise_for_status()
    limit_s = EVICTED_S * trial.scale
    await asyncio.sleep(limit_s)
    answers = [await trial.ask(f"{head} {trial.text(5)}") for head in heads]
    decisions = await fleet.decisions(len(heads))
    credited = sum(
        any(row["match"]["tokens"] for row in decision["table"]) for decision in decisions
    )
    cached = sum(answer.cached_tokens for answer in answers)
    return Result(
        f"... and no longer count as cached {limit_s:g} s after the engines evicted them",
        f"{credited} of {len(decisions)} decisions still counted on evicted blocks; "
        f"{cached} tokens came from a cache",
        credited == 0 and cached == 0 and len(decisions) == len(heads),
    )


BURST = 40
BURST_MOST = 14


async def burst(trial: Trial) -> list[Result]:
    """Equal requests at once spread, although the first of them makes one engine attractive."""
    prompt = trial.text(400)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(trial.ask(prompt, max_tokens=16)) for _ in range(BURST)]
    answers = [task.result() for task in tasks]
    shares = Counter(answer.pod for answer in answers)
    counts = sorted(shares.values(), reverse=True)
    fine = all(answer.status == 200 for answer in answers)
    measured = f"{' + '.join(map(str, counts))}" if fine else _statuses(answers)
    claim = (
        f"{BURST} equal requests at once on {trial.fleet.settings.engines} engines: "
        f"none gets more than {BURST_MOST}"
    )
    return [Result(claim, measured, fine and counts[0] <= BURST_MOST)]


AFTER_KILL = 100
KILL_MOST = 2


async def engine_killed(trial: Trial) -> list[Result]:
    """A killed engine gets next to nothing, and nothing after a second."""
    fleet, window_s = trial.fleet, 1.0 * trial.scale
    victim = "engine-0"
    load = Load(
        fleet.session,
        fleet.gateway,
        per_s=AFTER_KILL / (2.5 * window_s),
        prompt=_numbered(trial.text(100)),
    )
    before = await _sent_to(fleet, 0)
    await fleet.supervisor.kill(victim)
    killed = time.monotonic()
    async with asyncio.TaskGroup() as group:
        group.create_task(load.run(AFTER_KILL))
        await asyncio.sleep(window_s)
        within = await _sent_to(fleet, 0) - before
    after = await _sent_to(fleet, 0) - before - within
    late = sum(answer.status != 200 for sent, answer in load.answers if sent - killed > window_s)
    failed = sum(answer.status != 200 for _, answer in load.answers)
    await fleet.supervisor.restart(victim)
    await fleet.wait_settled()
    went = within + after
    claim = (
        f"kill -9 of an engine: at most {KILL_MOST} of the next {AFTER_KILL} requests go there, "
        f"none after {window_s:g} s, the rest are 200"
    )
    measured = f"{went} went there, {after} of them later; {AFTER_KILL - failed} were 200"
    holds = before > 0 and went <= KILL_MOST and after == 0 and failed <= went and late == 0
    return [Result(claim, measured, holds)]


async def _sent_to(fleet: Fleet, index: int) -> int:
    """Requests that Envoy has sent to this sidecar, retries included."""
    url = f"http://127.0.0.1:{fleet.settings.ports.envoy_admin}/clusters?format=json"
    async with fleet.session.get(url) as answer:
        answer.raise_for_status()
        clusters: list[dict[str, Any]] = (await answer.json(content_type=None))["cluster_statuses"]
    port = fleet.settings.ports.sidecars[index]
    hosts = itertools.chain.from_iterable(one.get("host_statuses", []) for one in clusters)
    return sum(
        int(stat.get("value", 0))
        for host in hosts
        if host["address"].get("socket_address", {}).get("port_value") == port
        for stat in host["stats"]
        if stat["name"] == "rq_total"
    )


STREAMS = 10
STREAM_TOKENS = 250


async def picker_killed(trial: Trial) -> list[Result]:
    """Answers in flight do not need the picker."""
    fleet = trial.fleet
    streams = [Stream() for _ in range(STREAMS)]
    async with asyncio.TaskGroup() as group:
        for one in streams:
            prompt = trial.text(50)
            group.create_task(
                client.stream(
                    fleet.session, fleet.gateway, prompt, max_tokens=STREAM_TOKENS, into=one
                )
            )
        await _all_started(streams, 10 * trial.scale)
        await fleet.supervisor.kill("epp")
        killed = time.monotonic()
    ended = sum(one.done for one in streams)
    alive = sum(bool(one.arrivals) and one.arrivals[-1] > killed for one in streams)
    await fleet.supervisor.restart("epp")
    back = time.monotonic()
    await fleet.wait_settled()
    settled_s = time.monotonic() - back
    answer = await trial.ask(trial.text(20))
    claim = f"the picker killed in the middle of {STREAMS} streamed answers: all end with [DONE]"
    measured = (
        f"{alive} went on after the kill, {ended} ended with [DONE]; the restarted picker knew "
        f"every engine again after {settled_s:.1f} s"
    )
    return [Result(claim, measured, ended == alive == STREAMS and answer.status == 200)]


async def _all_started(streams: list[Stream], limit_s: float) -> None:
    """Return when every stream has brought a few events, or when it is too late for that."""
    deadline = time.monotonic() + limit_s
    while True:
        started = all(len(one.arrivals) >= 5 for one in streams)
        if started or time.monotonic() > deadline:
            return
        await asyncio.sleep(0.01)


async def redis_gone(trial: Trial) -> list[Result]:
    """The request path does not wait for Redis."""
    fleet = trial.fleet
    load = Load(fleet.session, fleet.gateway, per_s=20, prompt=_numbered(trial.text(100)))
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(load.run(stop=stop))
        try:
            await asyncio.sleep(0.5)
            await fleet.supervisor.stop("redis")
            await asyncio.sleep(3)
            await fleet.supervisor.restart("redis")
            back = time.monotonic()
            await fleet.wait_settled()
            settled_s = time.monotonic() - back
            await asyncio.sleep(0.5)
        finally:
            stop.set()
    answers = [answer for _, answer in load.answers]
    fine = sum(answer.status == 200 for answer in answers)
    measured = f"{fine} of {len(answers)} were 200; precise again {settled_s:.1f} s after the start"
    claim = "Redis stopped and started under load: every request is answered 200"
    return [Result(claim, measured, fine == len(answers) > 0)]


CHECKS: tuple[tuple[str, Check], ...] = (
    ("repeated prefixes", prefixes),
    ("a burst of equal requests", burst),
    ("an engine is killed", engine_killed),
    ("the picker is killed", picker_killed),
)
REDIS_CHECKS: tuple[tuple[str, Check], ...] = (("Redis is stopped and started", redis_gone),)
"""For a fleet whose log is in Redis."""


async def run(trial: Trial, name: str, check: Check) -> list[Result]:
    """One check. A fleet that stops answering fails the check instead of ending the demo."""
    failure = ""
    try:
        return await check(trial)
    except* (EppError, aiohttp.ClientError, TimeoutError, ValueError) as errors:
        failure = "; ".join(f"{type(error).__name__}: {error}" for error in _flat(errors))
    return [Result(name, f"could not be measured: {failure}", False)]


def _flat(errors: BaseExceptionGroup[Exception]) -> Iterator[BaseException]:
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _flat(error)
        else:
            yield error


def _numbered(text: str) -> Callable[[int], str]:
    """Prompts that differ from their first word on."""
    return lambda number: f"{number} {text}"


def _statuses(answers: list[Answer]) -> str:
    counts = Counter(answer.status for answer in answers)
    return ", ".join(f"{count} x status {status}" for status, count in sorted(counts.items()))
