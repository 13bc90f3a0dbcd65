"""Where tokens come from, and what happens when they do not come."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from epp.request.apis.prompt import MAX_TEXT_BYTES, Parsed, TextPrompt, TokenPrompt
from epp.request.offload import Offload
from epp.request.tokens import MAX_KEYS, TokenCache, Tokenised, Tokens
from epp.request.tokens.breakers import Breaker, Breakers, Permit
from epp.request.tokens.engine import TokenizerError, TokenizerRefusedError
from epp.state import blocks

Fields = tuple[tuple[str, bytes], ...]


class Engine:
    """Tokenizes each byte to its number; counts; does as it is told."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Fields]] = []
        self.error: Exception | None = None
        self.gate: asyncio.Event | None = None
        self.answer: Callable[[bytes], bytes] = lambda text: msgspec.json.encode(
            {"tokens": list(text)}
        )

    async def __call__(self, model: str, fields: Fields, /) -> bytes:
        self.asked.append((model, fields))
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        return self.answer(msgspec.json.decode(fields[0][1]).encode())


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def tokens_of(
    engine: Engine | None, clock: Clock | None = None, *, max_calls: int = 16, limit_s: float = 2.0
) -> AsyncIterator[Tokens]:
    with Offload() as offload:
        async with asyncio.TaskGroup() as tasks:
            yield Tokens(
                tokenizer=engine,
                spawn=tasks.create_task,
                offload=offload,
                clock=clock or Clock(),
                max_calls=max_calls,
                call_limit_s=limit_s,
            )
            if engine is not None and engine.gate is not None:
                engine.gate.set()


def text(content: str, *, tokenizable: bool = True, other: int = 0) -> TextPrompt:
    fields = (("prompt", msgspec.json.encode(content)),) if tokenizable else None
    return TextPrompt(content.encode(), fields, other_bytes=other)


def parsed(prompt: TextPrompt | TokenPrompt, model: str = "m", salt: str = "") -> Parsed:
    return Parsed(
        api="completions", path="/v1/completions", model=model, cache_salt=salt, prompt=prompt
    )


async def resolve(
    tokens: Tokens, prompt: TextPrompt | TokenPrompt, *, wait_s: float = 1.0, **names: str
) -> Tokenised:
    return await tokens.resolve(parsed(prompt, **names), prompt, wait_s=wait_s)


LONG = "x" * 200
SEED = blocks.seed_of("m")


async def test_token_ids_are_exact_without_asking() -> None:
    engine = Engine()
    ids = list(range(130))
    async with tokens_of(engine) as tokens:
        found = await resolve(tokens, TokenPrompt(blocks.pack(ids), other_tokens=7))
    assert found == Tokenised(137, True, blocks.token_keys(ids, SEED), "given")
    assert engine.asked == []


async def test_a_text_gets_the_engines_tokens_and_the_next_time_the_cache_has_them() -> None:
    engine = Engine()
    async with tokens_of(engine) as tokens:
        first = await resolve(tokens, text(LONG, other=8))
        again = await resolve(tokens, text(LONG))
    assert first == Tokenised(202, True, blocks.token_keys(list(LONG.encode()), SEED), "engine")
    assert (again.tokens, again.keys, again.how) == (200, first.keys, "cached")
    assert engine.asked == [("m", (("prompt", msgspec.json.encode(LONG)),))]


@pytest.mark.parametrize("other", [{"model": "n"}, {"salt": "s"}])
async def test_another_model_or_salt_is_another_question_with_other_keys(
    other: dict[str, str],
) -> None:
    engine = Engine()
    async with tokens_of(engine) as tokens:
        first = await resolve(tokens, text(LONG))
        second = await resolve(tokens, text(LONG), **other)
    assert not set(first.keys) & set(second.keys)
    assert len(engine.asked) == 2


async def test_equal_questions_at_once_share_one_call() -> None:
    engine = Engine()
    engine.gate = asyncio.Event()
    async with tokens_of(engine) as tokens, asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(resolve(tokens, text(LONG))) for _ in range(5)]
        await asyncio.sleep(0.01)
        assert tokens.calls == 1
        engine.gate.set()
    assert len(engine.asked) == 1
    assert all(task.result().exact for task in waiting)


async def test_a_late_answer_gives_an_estimate_now_and_tokens_to_the_next() -> None:
    engine = Engine()
    engine.gate = asyncio.Event()
    async with tokens_of(engine) as tokens:
        late = await resolve(tokens, text(LONG), wait_s=0.01)
        assert late == Tokenised(50, False, blocks.byte_keys(LONG.encode(), SEED), "late")
        engine.gate.set()
        await asyncio.sleep(0.01)
        assert (await resolve(tokens, text(LONG))).how == "cached"
    assert len(engine.asked) == 1


async def test_a_cancelled_request_does_not_cancel_the_call_for_the_others() -> None:
    engine = Engine()
    engine.gate = asyncio.Event()
    async with tokens_of(engine) as tokens:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await resolve(tokens, text(LONG))
        engine.gate.set()
        await asyncio.sleep(0.01)
        assert (await resolve(tokens, text(LONG))).how == "cached"


async def test_no_more_calls_than_the_limit_run_at_once() -> None:
    engine = Engine()
    engine.gate = asyncio.Event()
    async with tokens_of(engine, max_calls=2) as tokens:
        for number in range(2):
            assert (await resolve(tokens, text(LONG + str(number)), wait_s=0)).how == "late"
        assert (await resolve(tokens, text(LONG + "2"), wait_s=0)).how == "busy"
        assert tokens.calls == 2


async def test_a_dead_tokenizer_costs_nothing_after_three_failures_and_comes_back() -> None:
    engine, clock = Engine(), Clock()
    engine.error = TokenizerError("away")
    async with tokens_of(engine, clock) as tokens:
        hows = [(await resolve(tokens, text(LONG + str(number)))).how for number in range(5)]
        assert hows == ["failed"] * 3 + ["tokenizer off"] * 2
        assert len(engine.asked) == 3
        engine.error = None
        clock.now += 1.1
        assert (await resolve(tokens, text(LONG))).how == "tokenizer off"  # the probe
        await asyncio.sleep(0.01)
        assert (await resolve(tokens, text(LONG))).how == "cached"
        assert (await resolve(tokens, text(LONG + "!"))).how == "engine"


async def test_a_failure_for_one_model_does_not_stop_another() -> None:
    engine = Engine()
    engine.error = TokenizerError("status 404")
    async with tokens_of(engine) as tokens:
        for _ in range(4):
            await resolve(tokens, text(LONG), model="unknown")
        engine.error = None
        assert (await resolve(tokens, text(LONG))).how == "engine"


async def test_a_refused_prompt_does_not_count_against_the_tokenizer() -> None:
    engine = Engine()
    engine.error = TokenizerRefusedError("status 400")
    async with tokens_of(engine) as tokens:
        hows = [(await resolve(tokens, text(LONG + str(number)))).how for number in range(9)]
    assert hows == ["failed"] * 9
    assert tokens.counts["call failed"] == 0


async def test_an_engine_that_hangs_is_given_up_after_the_limit() -> None:
    engine = Engine()
    engine.gate = asyncio.Event()
    async with tokens_of(engine, limit_s=0.02) as tokens:
        assert (await resolve(tokens, text(LONG))).how == "failed"
        assert tokens.calls == 0
        assert tokens.counts["call failed"] == 1


@pytest.mark.parametrize(
    "answer", [b"", b"{}", b"[]", b'{"tokens":["a"]}', b'{"tokens":[-1]}', b'{"tokens":[1e99]}']
)
async def test_an_answer_that_is_no_list_of_ids_is_a_failure(answer: bytes) -> None:
    engine = Engine()
    engine.answer = lambda _: answer
    async with tokens_of(engine) as tokens:
        assert (await resolve(tokens, text(LONG))).how == "failed"
    assert tokens.counts["call failed"] == 1


async def test_an_unforeseen_exception_ends_one_call_only() -> None:
    engine = Engine()
    engine.error = RuntimeError("bug")
    async with tokens_of(engine) as tokens:
        assert (await resolve(tokens, text(LONG))).how == "failed"
        assert tokens.calls == 0
    assert tokens.counts["call failed"] == 1


@pytest.mark.parametrize(
    ("prompt", "how"),
    [
        (text("short"), "too short"),
        (text(LONG, tokenizable=False), "not tokenizable"),
        (text("x" * (MAX_TEXT_BYTES + 1)), "too long"),
        (text("x" * (MAX_TEXT_BYTES + 2)).bounded(), "too long"),
    ],
)
async def test_what_no_engine_need_be_asked_is_estimated(prompt: TextPrompt, how: str) -> None:
    engine = Engine()
    async with tokens_of(engine) as tokens:
        found = await resolve(tokens, prompt)
    assert (found.how, found.exact) == (how, False)
    assert engine.asked == []


async def test_without_a_tokenizer_bytes_stand_in() -> None:
    async with tokens_of(None) as tokens:
        found = await resolve(tokens, text(LONG))
    assert (found.how, found.tokens, len(found.keys)) == ("no tokenizer", 50, 0)


async def test_the_number_of_keys_is_bounded_but_the_size_is_true() -> None:
    async with tokens_of(None) as tokens:
        ids = b"\1\0\0\0" * (64 * MAX_KEYS + 640)
        found = await resolve(tokens, TokenPrompt(ids))
        assert (len(found.keys), found.tokens) == (MAX_KEYS, 64 * MAX_KEYS + 640)
        long = text("x" * (256 * MAX_KEYS + 5120))
        estimate = await resolve(tokens, long)
        assert (len(estimate.keys), estimate.tokens) == (MAX_KEYS, 64 * MAX_KEYS + 1280)


def test_the_cache_is_bounded_by_memory_and_forgets_the_least_recently_used() -> None:
    entry = Tokenised(64, True, (1,), "engine")
    cache = TokenCache(max_bytes=1000)
    for name in (b"a", b"b", b"c"):
        cache.put(name, entry)
    assert cache.get(b"a") is not None
    cache.put(b"d", entry)
    assert [cache.get(name) is not None for name in (b"a", b"b", b"c", b"d")] == [
        True,
        False,
        True,
        True,
    ]
    assert cache.bytes <= 1000
    cache.put(b"d", entry)
    assert len(cache) == 3
    cache.put(b"huge", Tokenised(1, True, tuple(range(100)), "engine"))
    assert (len(cache), cache.bytes) == (0, 0)


def test_a_breaker_pauses_longer_each_time_up_to_a_limit() -> None:
    breaker = Breaker(threshold=1, first_pause_s=1.0, max_pause_s=3.0)
    now = 0.0
    pauses = []
    for _ in range(4):
        breaker.failed(now)
        begin = now
        while breaker.permit(now) is Permit.NO:
            now += 0.5
        pauses.append(now - begin)
    assert pauses == [1.0, 2.0, 3.0, 3.0]
    assert breaker.permit(now) is Permit.NO  # one probe at a time
    breaker.succeeded()
    assert breaker.permit(now) is Permit.ASK


def test_breakers_are_bounded() -> None:
    breakers = Breakers(max_models=2)
    for model in ("a", "b", "a", "c"):
        breakers.of(model)
    assert len(breakers) == 2
