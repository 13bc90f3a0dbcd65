"""Does a real engine reuse what its events say that it holds? Request by request.

Each prompt's exact tokens give its keys; the mirror of the engine's events says how many of its
blocks are held, just before the engine is asked; the engine's usage says what it reused. The small
caches of these engines evict all the time.
"""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from epp.errors import LocalError
from epp.sim.fleets import vllm
from epp.state.blocks import OWN_BLOCK_TOKENS, Naming, seed_of, token_keys
from epp.state.replaying import fetch
from epp.state.writing.cache import CacheMirror
from tests.real.conftest import DECODE, PREFILL, Place, Real
from tests.timing import scaled

NAMING = Naming.of_pool("reuse", salt_key=b"reuse" * 8)
ENGINE = vllm.BLOCK_TOKENS
SEEN_S = 10.0
SHORT = 60
WHOLE = 400
PREFILL_ONLY = {"do_remote_decode": True, "do_remote_prefill": False}


@dataclass
class Sample:
    kind: str
    tokens: int
    actual: int
    predicted: dict[int, int]
    """By the size of own blocks."""


class Eye:
    """The events of one engine, fetched when we want to know; in own blocks of two sizes."""

    def __init__(self, replay: str) -> None:
        self._replay = replay
        self._last: int | None = None
        self._mirrors = {size: self._mirror(size) for size in (OWN_BLOCK_TOKENS, ENGINE)}

    @staticmethod
    def _mirror(size: int) -> CacheMirror:
        mirror = CacheMirror(lambda _: None, naming=NAMING, own_block_tokens=size)
        mirror.serve(vllm.MODEL)
        return mirror

    async def look(self) -> None:
        """Take what the engine has said since; an engine that knows nothing of it began anew."""
        frames = [frame async for frame in fetch(self._replay, self._last or 0)]
        if self._last is not None and all(frame.seq != self._last for frame in frames):
            frames = [frame async for frame in fetch(self._replay, 0)]
            self._last = None
        for frame in frames:
            if self._last is None or frame.seq > self._last:
                self._last = frame.seq
                for mirror in self._mirrors.values():
                    mirror.on(frame)

    def cached(self, tokens: list[int], salt: str) -> dict[int, int]:
        """Tokens that the engine should find, by the size of own blocks."""
        seed = seed_of(vllm.MODEL, salt=salt, naming=NAMING)
        most = (len(tokens) - 1) // ENGINE * ENGINE  # the last token is always computed
        found = {}
        for size, mirror in self._mirrors.items():
            held = set(mirror.present())
            keys = token_keys(tokens, seed, size)
            depth = next((at for at, key in enumerate(keys) if key not in held), len(keys))
            found[size] = min(depth * size, most)
        return found

    async def forgot(self, tokens: list[int]) -> None:
        """Wait until the engine has told that a prompt is gone."""
        async with asyncio.timeout(scaled(SEEN_S)):
            while self.cached(tokens, "")[ENGINE]:
                await asyncio.sleep(0.02)
                await self.look()

    async def holds(self, tokens: list[int], salt: str) -> None:
        """Wait until the engine has told of a prompt that it computed."""
        whole = (len(tokens) - 1) // ENGINE * ENGINE
        async with asyncio.timeout(scaled(SEEN_S)):
            while self.cached(tokens, salt)[ENGINE] < whole:
                await asyncio.sleep(0.02)
                await self.look()


@dataclass
class Trial:
    """Asks both engines, and keeps what was predicted and what came."""

    real: Real
    rng: random.Random
    eyes: dict[Place, Eye]
    samples: list[Sample] = field(default_factory=list)
    chats: list[list[dict[str, str]]] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)

    def ids(self, count: int) -> list[int]:
        return [self.rng.randrange(5, 2048) for _ in range(count)]

    async def post(self, place: Place, path: str, body: dict[str, Any]) -> dict[str, Any]:
        url = self.real.engine(place) + path
        async with self.real.fleet.session.post(url, json={"model": vllm.MODEL, **body}) as answer:
            found: dict[str, Any] = await answer.json()
            assert answer.status == 200, found
            return found

    async def ask(
        self,
        kind: str,
        place: Place,
        body: dict[str, Any],
        tokens: list[int],
        *,
        path: str = "/v1/completions",
    ) -> dict[str, Any]:
        salt = body.get("cache_salt", "")
        await self.eyes[place].look()
        predicted = self.eyes[place].cached(tokens, salt)
        answer = await self.post(place, path, {"max_tokens": 4, "temperature": 0, **body})
        usage = answer["usage"]
        assert usage["prompt_tokens"] == len(tokens)
        details = usage.get("prompt_tokens_details") or {}
        actual = details.get("cached_tokens") or 0
        self.samples.append(Sample(kind, len(tokens), actual, predicted))
        await self.eyes[place].holds(tokens, salt)
        return answer

    async def turn(self) -> None:
        """The next turn of a chat, or the first of a new one."""
        going = [chat for chat in self.chats if len(chat) < 8]
        if not going or self.rng.random() < 0.2:
            self.chats.append([{"role": "system", "content": self.words(60)}])
            going = self.chats[-1:]
        chat = self.rng.choice(going[-3:])
        chat.append({"role": "user", "content": self.words(40)})
        body: dict[str, Any] = {"messages": chat}
        tokens = (await self.post(PREFILL, "/tokenize", body))["tokens"]
        answer = await self.ask("turn", PREFILL, body, tokens, path="/v1/chat/completions")
        chat.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})

    async def prompt(self, kind: str, place: Place = PREFILL, **more: Any) -> dict[str, Any]:
        """A prompt that begins like one before, for the most part."""
        known = self.prompts[-6:] if kind != "evicted" else self.prompts
        if known and self.rng.random() < 0.85:
            before = self.rng.choice(known)
            cut = self.rng.randrange(len(before) // 2, len(before) + 1)
            tokens = [*before[:cut], *self.ids(self.rng.randrange(1, 60))]
        else:
            tokens = self.ids(self.rng.randrange(40, 500))
        if len(tokens) < 600:
            self.prompts.append(tokens)
        return await self.ask(kind, place, {"prompt": tokens, **more}, tokens)

    async def split(self) -> None:
        """The prompt computed by one engine, the answer by the other, which pulls its KV."""
        answer = await self.prompt("split", kv_transfer_params=PREFILL_ONLY, max_tokens=1)
        pulled = {"prompt": self.prompts[-1], "kv_transfer_params": answer["kv_transfer_params"]}
        await self.post(DECODE, "/v1/completions", {"max_tokens": 4, **pulled})
        await self.eyes[DECODE].look()
        await self.eyes[DECODE].holds(self.prompts[-1], "")
        await self.prompt("split", DECODE)

    async def flood(self) -> None:
        """Fill the cache with what nobody asks for again."""
        for _ in range(14):
            body = {"prompt": self.ids(600), "max_tokens": 1}
            await self.post(PREFILL, "/v1/completions", body)

    def words(self, count: int) -> str:
        return " ".join(f"w{self.rng.randrange(10_000)}" for _ in range(count))


async def run(trial: Trial, requests: int, *, restart: bool) -> None:
    """The mixture: 30 % turns of chats; 10 % each salted, split, after eviction, after restart."""
    tenth = requests // 10
    kinds = ["turn"] * 3 * tenth + ["salted"] * tenth + ["split"] * (tenth // 2)
    kinds += ["again"] * (requests - 3 * tenth - tenth - tenth - 2 * tenth)
    trial.rng.shuffle(kinds)
    for kind in kinds:
        match kind:
            case "turn":
                await trial.turn()
            case "split":
                await trial.split()
            case "salted":
                await trial.prompt(kind, cache_salt=trial.rng.choice(["one", "two"]))
            case _:
                await trial.prompt(kind)
    await trial.flood()
    for _ in range(tenth):
        await trial.prompt("evicted")
    if restart:
        await trial.real.fleet.supervisor.restart("prefill-0")
        await trial.real.fleet.wait_settled()
    else:
        await trial.real.forget(PREFILL)
        # An idle engine says so with its next step only.
        await trial.post(PREFILL, "/v1/completions", {"prompt": trial.ids(64), "max_tokens": 1})
        await trial.eyes[PREFILL].forgot(trial.prompts[-1])
    for _ in range(tenth):
        await trial.prompt("restarted")


def trial_of(real: Real) -> Trial:
    ports = real.fleet.settings.ports.kv_replays
    return Trial(
        real=real,
        rng=random.Random(400),
        eyes={place: Eye(f"tcp://127.0.0.1:{ports[place]}") for place in (PREFILL, DECODE)},
    )


def _is_installed() -> bool:
    try:
        vllm.find()
    except LocalError:
        return False
    return True


@pytest.mark.long
@pytest.mark.skipif(not _is_installed(), reason="needs real engines: make setup-vllm")
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize(
    ("requests", "restart"),
    [
        pytest.param(SHORT, False, id="sixty"),
        pytest.param(WHOLE, True, id="four-hundred", marks=pytest.mark.timeout(1800)),
    ],
)
async def test_requests_reuse_what_the_events_say(requests: int, restart: bool, real: Real) -> None:
    trial = trial_of(real)
    await run(trial, requests, restart=restart)
    samples = trial.samples
    counted = Counter(sample.kind for sample in samples)
    assert len(samples) >= requests * 0.95
    assert counted["turn"] >= requests * 0.3
    assert min(counted[kind] for kind in ("salted", "split", "evicted", "restarted")) >= (
        requests // 10 // 2 * 2
    )
    off = [abs(sample.predicted[OWN_BLOCK_TOKENS] - sample.actual) for sample in samples]
    near = sum(one < max(OWN_BLOCK_TOKENS, ENGINE) for one in off)
    exact = sum(sample.predicted[ENGINE] == sample.actual for sample in samples)
    wrong = [sample for sample in samples if sample.predicted[ENGINE] != sample.actual]
    zero = sum(sample.actual < max(OWN_BLOCK_TOKENS, ENGINE) for sample in samples)
    tokens = sum(sample.tokens for sample in samples)
    errors = sum(abs(s.predicted[ENGINE] - s.actual) for s in samples)
    print(f"{len(samples)} requests {dict(counted)}: {near} near, {exact} exact, {zero} near zero")
    print(f"mean error {errors / tokens:.4%} of {tokens} tokens; wrong: {wrong[:5]}")
    assert near >= 0.99 * len(samples), wrong
    assert exact >= 0.99 * len(samples), wrong
    assert errors <= 0.01 * tokens
    assert zero <= 0.4 * len(samples), "a constant 0 would be right too often"
