"""A client of a fleet: what an answer said about where it came from and how it ended."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp
import msgspec

from epp.sim.fleets.parts import SIM_MODEL

DONE = b"data: [DONE]"
_PATH = "/v1/completions"


class _Details(msgspec.Struct):
    cached_tokens: int = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Choice(msgspec.Struct):
    text: str = ""


class _Completion(msgspec.Struct):
    usage: _Usage
    choices: list[_Choice] = []


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer that was not streamed."""

    status: int
    """0 when there was no answer at all."""
    pod: str = ""
    """The engine that says it answered; empty when none did."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    text: str = ""


@dataclass(slots=True)
class Stream:
    """A streamed answer as it comes in."""

    status: int = 0
    pod: str = ""
    arrivals: list[float] = field(default_factory=list[float])
    """When each event came, in monotonic seconds; the closing one included."""
    done: bool = False
    """Whether it ended with `[DONE]`."""
    fault: str = ""
    """What broke it off."""


async def complete(
    session: aiohttp.ClientSession,
    base: str,
    prompt: str,
    *,
    max_tokens: int = 1,
    model: str = SIM_MODEL,
    **more: object,
) -> Answer:
    """Ask for a greedy completion and wait for all of it. Connection faults are status 0.

    `more` are further members of the request's body.
    """
    body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **more}
    try:
        async with session.post(base + _PATH, json=body) as answer:
            raw = await answer.read()
            pod = answer.headers.get("x-inference-pod", "")
            if answer.status != 200:
                return Answer(answer.status, pod)
            completion = msgspec.json.decode(raw, type=_Completion)
    except (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError):
        return Answer(0)
    usage = completion.usage
    details = usage.prompt_tokens_details or _Details()
    text = "".join(choice.text for choice in completion.choices)
    return Answer(200, pod, usage.prompt_tokens, details.cached_tokens, text)


async def stream(
    session: aiohttp.ClientSession,
    base: str,
    prompt: str,
    *,
    max_tokens: int,
    into: Stream,
) -> None:
    """Ask for a streamed completion and note every event in `into` as it comes."""
    body = {"model": SIM_MODEL, "prompt": prompt, "max_tokens": max_tokens, "stream": True}
    try:
        async with session.post(base + _PATH, json=body) as answer:
            into.status = answer.status
            into.pod = answer.headers.get("x-inference-pod", "")
            async for line in answer.content:
                if line.startswith(b"data:"):
                    into.arrivals.append(time.monotonic())
                    into.done = line.startswith(DONE)
    except (aiohttp.ClientError, TimeoutError) as error:
        into.fault = str(error) or type(error).__name__


class Load:
    """Requests at a steady rate, whether or not the answers keep up; at most `limit` in flight."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        base: str,
        *,
        per_s: float,
        prompt: Callable[[int], str],
        limit: int = 500,
    ) -> None:
        self.answers: list[tuple[float, Answer]] = []
        """When each request was sent, and its answer; in the order of the answers."""
        self._session = session
        self._base = base
        self._period_s = 1 / per_s
        self._prompt = prompt
        self._places = asyncio.Semaphore(limit)

    async def run(self, count: int | None = None, stop: asyncio.Event | None = None) -> None:
        """Send `count` requests, or until `stop`; return when all are answered."""
        sent = 0
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            while (count is None or sent < count) and not (stop and stop.is_set()):
                await self._places.acquire()
                group.create_task(self._one(sent))
                sent += 1
                await asyncio.sleep(max(0.0, began + sent * self._period_s - time.monotonic()))

    async def _one(self, number: int) -> None:
        sent = time.monotonic()
        try:
            answer = await complete(self._session, self._base, self._prompt(number))
        finally:
            self._places.release()
        self.answers.append((sent, answer))
