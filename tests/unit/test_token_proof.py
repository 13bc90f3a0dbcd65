"""Exact tokens are proven to be the engine's: compared once, watched always, stepped down from."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import msgspec
from structlog.testing import capture_logs

from epp.framework import EndpointId, PoolId, Request
from epp.request.apis.prompt import Fields, Parsed, TextPrompt
from epp.request.offload import Offload
from epp.request.tokens import Tokenised, Tokens
from epp.request.tokens.comparing import PROBES, Difference, Local, compared, difference
from epp.request.tokens.engine import TokenizerError
from epp.request.tokens.standing import MOST_MISSED, PAUSE_S, WINDOW, Standing, Standings, Step
from epp.request.tokens.tokenised import UnrenderableError
from epp.request.tokens.watch import MAX_FOLLOWED, MAX_PROMPTS, SHOWN_S, Prompt, Watch
from epp.state import blocks

A = EndpointId(PoolId("p"), "a", 1)
DECIDED = None  # the watch looks at the request alone


class Here:
    """Makes one token of each byte, `shift` beside the engine's."""

    def __init__(self, shift: int = 0) -> None:
        self.shift = shift
        self.asked = 0
        self.refuses = False

    def ids(self, fields: Fields) -> bytes:
        self.asked += 1
        if self.refuses:
            raise UnrenderableError("not for us")
        return blocks.pack([byte + self.shift for byte in fields[0][1]])

    def keys(self, fields: Fields, seed: int) -> tuple[int, tuple[int, ...]]:
        ids = self.ids(fields)
        return len(ids) // 4, blocks.token_keys(ids, seed)


class Engine:
    """One token of each byte of the first field."""

    def __init__(self) -> None:
        self.asked: list[Fields] = []
        self.down = False

    async def __call__(self, model: str, fields: Fields, /) -> bytes:
        self.asked.append(fields)
        if self.down:
            raise TokenizerError("nobody")
        return msgspec.json.encode({"tokens": list(fields[0][1])})


class Bench:
    def __init__(self) -> None:
        self.now = 100.0
        self.here: Here | None = Here()
        self.engine = Engine()
        self.shown: bool | None = True
        self.life = 1
        self.tokens: Tokens

    def clock(self) -> float:
        return self.now

    def local(self, model: str) -> Local | None:
        return self.here

    def shows(self, endpoint: EndpointId, keys: Sequence[int], now: float) -> bool | None:
        assert endpoint == A
        assert 0 < len(keys) <= 3
        return self.shown

    async def resolve(self, text: str) -> Tokenised:
        raw = msgspec.json.encode(text)
        prompt = TextPrompt(text.encode(), (("prompt", raw),))
        parsed = Parsed(api="completions", path="/", model="m", prompt=prompt)
        found = await self.tokens.resolve(parsed, prompt, wait_s=1.0)
        await asyncio.sleep(0.01)  # what goes on beside
        return found

    async def route(self, number: int) -> str:
        """A prompt of its own goes to A and gets its first token there; says how it was found."""
        found = await self.resolve(f"{number} " * 100)
        name = f"r{number}"
        request = Request(id=name, api="", path="/", keys=found.keys, exact=found.exact)
        self.tokens.watch.decided(DECIDED, request, "ok", 0.0)
        self.tokens.watch.first_token(name, A, self.now)
        self.now += SHOWN_S + 0.1
        self.tokens.watch.tick(self.now)
        await asyncio.sleep(0.01)
        return found.how


@asynccontextmanager
async def bench(*, local: bool = True) -> AsyncIterator[Bench]:
    one = Bench()
    with Offload() as offload:
        async with asyncio.TaskGroup() as tasks:
            one.tokens = Tokens(
                tokenizer=one.engine,
                local=one.local if local else None,
                shows=one.shows,
                life=lambda _: one.life,
                spawn=tasks.create_task,
                offload=offload,
                clock=one.clock,
            )
            yield one


async def test_tokens_made_here_are_compared_with_the_engines_once() -> None:
    async with bench() as one:
        first = await one.resolve("x" * 200)
        assert (first.how, first.exact, first.tokens) == ("local", True, 202)
        assert list(one.engine.asked) == list(PROBES)
        assert (await one.resolve("y" * 200)).how == "local"
        assert (await one.resolve("y" * 200)).how == "cached"
        assert len(one.engine.asked) == len(PROBES)
        assert one.tokens.stepped_down == {"engine": 0, "estimate": 0}


async def test_tokens_that_differ_are_asked_for_and_the_first_of_them_is_named() -> None:
    async with bench() as one:
        one.here = Here(shift=1)
        with capture_logs() as logs:
            await one.resolve("x" * 200)
            assert (await one.resolve("x" * 200)).how == "engine"
        warnings = [entry for entry in logs if entry["log_level"] == "warning"]
        assert [(w["first_at"], w["ours"], w["theirs"]) for w in warnings] == [("0", "35", "34")]
        assert one.tokens.stepped_down == {"engine": 1, "estimate": 0}
        one.now += PAUSE_S
        one.here = Here()
        assert (await one.resolve("z" * 200)).how == "local"
        assert one.tokens.stepped_down == {"engine": 0, "estimate": 0}


async def test_engines_that_cannot_be_asked_are_asked_a_few_times_only() -> None:
    async with bench() as one:
        one.engine.down = True
        for number in range(9):
            assert (await one.resolve(f"{number}" * 200)).how == "local"
        assert len(one.engine.asked) == 5 * len(PROBES)


async def test_what_cannot_be_made_here_is_asked_for() -> None:
    async with bench() as one:
        assert one.here is not None
        one.here.refuses = True
        assert (await one.resolve("x" * 200)).how == "engine"
        one.here = None
        assert (await one.resolve("y" * 200)).how == "engine"


async def test_blocks_that_do_not_show_up_are_a_step_down_each_time() -> None:
    async with bench() as one:
        await one.route(0)
        one.shown = False
        ways = [await one.route(number) for number in range(1, 10)]
        assert ways == ["local"] * 3 + ["engine"] * 3 + ["tokens differ"] * 3
        assert one.tokens.missed == 6
        assert one.tokens.stepped_down == {"engine": 0, "estimate": 1}


async def test_the_warning_of_missed_blocks_names_the_first_token_that_differs() -> None:
    async with bench() as one:
        await one.route(0)  # compared, and equal
        assert one.here is not None
        one.here.shift, one.shown = 1, False
        with capture_logs() as logs:
            for number in range(1, 8):
                await one.route(number)
        told = [entry for entry in logs if "first_at" in entry or "why" in entry]
        assert [entry["log_level"] for entry in told] == ["warning", "info"]
        assert (told[0]["first_at"], told[0]["from_now_on"]) == ("0", "engine")
        assert told[1]["from_now_on"] == "estimate"


async def test_engines_whose_events_are_not_believed_prove_nothing() -> None:
    async with bench() as one:
        one.shown = None
        assert {await one.route(number) for number in range(10)} == {"local"}
        assert one.tokens.missed == 0


async def test_an_engine_that_restarts_takes_its_blocks_along_and_disproves_nothing() -> None:
    async with bench() as one:
        one.shown = False
        for number in range(MOST_MISSED + 1):
            found = await one.resolve(f"{number} " * 100)
            request = Request(id=f"r{number}", api="", path="/", keys=found.keys, exact=True)
            one.tokens.watch.decided(DECIDED, request, "ok", 0.0)
            one.tokens.watch.first_token(request.id, A, one.now)
        one.life += 1
        one.now += SHOWN_S + 0.1
        one.tokens.watch.tick(one.now)
        assert (await one.resolve("after " * 100)).how == "local"
        assert len(one.tokens.watch) == 0
        assert {await one.route(100 + number) for number in range(MOST_MISSED + 1)} == {"local"}
        assert (await one.resolve("later " * 100)).how != "local", "its new life tells as before"


async def test_without_files_the_engines_tokens_are_watched_too() -> None:
    async with bench(local=False) as one:
        one.shown = False
        ways = [await one.route(number) for number in range(5)]
        assert ways == ["engine"] * 3 + ["tokens differ"] * 2


# Standing


def test_five_percent_of_fifty_requests_may_be_missed() -> None:
    standing = Standing(Step.LOCAL)
    for number in range(40 * WINDOW):
        assert not standing.judge(number % WINDOW >= MOST_MISSED, 0.0)
    assert standing.step is Step.LOCAL
    assert any(standing.judge(False, 0.0) for _ in range(MOST_MISSED + 1))
    assert standing.step is Step.ENGINE


def test_a_better_way_is_tried_again_one_step_after_each_pause() -> None:
    standing = Standing(Step.LOCAL)
    standing.down(0.0)
    standing.down(0.0)
    assert standing.at(PAUSE_S - 1) is Step.ESTIMATE
    assert standing.at(PAUSE_S) is Step.ENGINE
    assert standing.at(2 * PAUSE_S - 1) is Step.ENGINE
    assert standing.at(2 * PAUSE_S) is Step.LOCAL
    assert standing.at(9 * PAUSE_S) is Step.LOCAL


def test_models_are_remembered_up_to_a_limit() -> None:
    standings = Standings(Step.LOCAL, max_models=2)
    for model in "abc":
        standings.of(model).down(0.0)
    assert standings.below() == {Step.ENGINE: 2, Step.ESTIMATE: 0}
    assert standings.of("a").step is Step.LOCAL


# Watch


def watch(shown: Callable[[], bool | None] = lambda: True) -> tuple[Watch, list[bool]]:
    heard: list[bool] = []
    return Watch(lambda *_: shown(), lambda prompt, found, now: heard.append(found)), heard


def found(one: Watch, first: int = 1) -> Request:
    one.found("m", Step.LOCAL, (first, 2, 3, 4), ())
    return Request(id=f"r{first}", api="", path="/", keys=(first, 2, 3, 4), exact=True)


def test_a_prompt_is_judged_ten_seconds_after_its_first_token() -> None:
    one, heard = watch()
    request = found(one)
    one.decided(DECIDED, request, "ok", 0.0)
    one.tick(1000.0)
    one.first_token(request.id, A, 1000.0)
    one.first_token(request.id, A, 1005.0)
    one.tick(1000.0 + SHOWN_S - 0.1)
    assert heard == []
    one.first_token("another", A, 1000.0 + SHOWN_S)
    assert heard == [True]
    assert len(one) == 0


def test_blocks_that_were_evicted_since_they_were_seen_disprove_nothing() -> None:
    shown: list[bool | None] = [None, False, True, False]
    one, judged = watch(lambda: shown.pop(0))
    request = found(one)
    one.decided(DECIDED, request, "ok", 0.0)
    one.first_token(request.id, A, 0.0)
    for half_seconds in range(1, 10):
        one.tick(half_seconds / 2)  # it looks each second
    assert shown == [False], "nobody looks for what was seen"
    one.tick(SHOWN_S)
    assert judged == [True]


def test_estimates_and_token_ids_from_the_client_are_not_followed() -> None:
    one, _ = watch()
    one.decided(DECIDED, Request(id="a", api="", path="/", keys=(9,), exact=True), "ok", 0.0)
    one.found("m", Step.LOCAL, (), ())
    request = found(one)
    one.decided(DECIDED, Request(id="b", api="", path="/", keys=request.keys), "ok", 0.0)
    one.decided(DECIDED, Request(id="c", api="", path="/", exact=True), "ok", 0.0)
    assert len(one) == 0


def test_prompts_and_requests_are_followed_up_to_a_limit() -> None:
    one, _ = watch()
    first = found(one, 1)
    requests = [found(one, number) for number in range(2, MAX_PROMPTS + 2)]
    one.decided(DECIDED, first, "ok", 0.0)
    assert len(one) == 0, "forgotten for newer ones"
    for round_ in range(4):
        for request in requests:
            one.decided(DECIDED, replace(request, id=f"{request.id}-{round_}"), "ok", 0.0)
    assert len(one) == MAX_FOLLOWED


def test_a_large_prompt_is_followed_without_its_text() -> None:
    prompts: list[Prompt] = []
    one = Watch(lambda *_: True, lambda prompt, shown, now: prompts.append(prompt))
    one.found("m", Step.LOCAL, (1,), (("prompt", b"x" * 100_000),))
    one.decided(DECIDED, Request(id="r", api="", path="/", keys=(1,), exact=True), "ok", 0.0)
    one.first_token("r", A, 0.0)
    one.tick(SHOWN_S)
    assert [prompt.fields for prompt in prompts] == [None]


# Comparing


def test_the_first_difference_is_where_one_ends_or_another_token_stands() -> None:
    ids = blocks.pack([1, 2, 3])
    assert difference(ids, ids) is None
    assert difference(ids, blocks.pack([1, 5, 3])) == Difference(1, 2, 5)
    assert difference(ids, blocks.pack([1, 2])) == Difference(2, 3, None)
    assert difference(b"", ids) == Difference(0, None, 1)


async def test_prompts_that_are_not_for_us_are_not_compared() -> None:
    here = Here()
    here.refuses = True

    async def ask(fields: Fields) -> bytes | None:
        raise AssertionError("nobody is asked")

    assert await compared(here, ask) is False
