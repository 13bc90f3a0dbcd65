"""Prefill engines that die and come back around a handoff. Each test leaves one that runs."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.real.conftest import DECODE, PREFILL, Ask, Real
from tests.real.stage import Stage, staged

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="session")]

ENGINE = "prefill-0"
RESTART_S = 600.0


async def kill(real: Real) -> None:
    await real.fleet.supervisor.kill(ENGINE)


async def start(real: Real) -> None:
    await real.fleet.supervisor.restart(ENGINE)


@asynccontextmanager
async def prefill_back(real: Real) -> AsyncIterator[None]:
    """After the block the prefill engine runs, and the picker knows it."""
    try:
        yield
    finally:
        if not real.fleet.supervisor.alive(ENGINE):
            await start(real)
        await real.fleet.wait_settled()


async def assert_pulls(real: Real, ask: Ask, text: str) -> None:
    before = await real.counters(DECODE)
    answer = await real.ask(real.gateway, ask)
    assert (answer.status, answer.text) == (200, text)
    now = await real.pulled(before, 1)
    blocks = real.blocks(answer.prompt_tokens)
    assert now.pulled_bytes - before.pulled_bytes == blocks * real.block_bytes


async def answered_without_a_pull(stage: Stage, ask: Ask, text: str, reason: str) -> None:
    """The client sees one right answer, whatever became of the prefill."""
    before = await stage.real.counters(DECODE)
    counted = await stage.handoffs()
    answer = await stage.ask(ask, limit_s=RESTART_S + 60)
    assert (answer.status, answer.text) == (200, text)
    ending = ("answered", reason)
    await stage.counted({**counted, ending: counted.get(ending, 0) + 1})
    now = await stage.real.counters(DECODE)
    assert now.pulled_bytes == before.pulled_bytes


async def test_a_prefill_engine_killed_after_the_handshake_costs_a_recompute(
    real: Real, words: Callable[[int], str], tmp_path: Path
) -> None:
    first, second, third, fourth = (Ask(words(60 + n), stream=n % 2 == 1) for n in range(4))
    texts = await real.alone(first, second, third, fourth)
    async with prefill_back(real), staged(real, tmp_path) as stage:
        assert (await stage.ask(first)).text == texts[0]  # now the engines know each other
        await stage.counted({("answered", "split"): 1})
        stage.between = lambda: kill(real)
        # A stream tells of the failed pull with a 200 and an error event.
        await answered_without_a_pull(stage, second, texts[1], "pull-error-event")
        # Its sidecar lives and says so; and the picker sends nobody there.
        await answered_without_a_pull(stage, third, texts[2], "prefill-status")
        answer = await real.ask(real.gateway, fourth)  # no prefill pod is ready
        assert (answer.status, answer.text) == (200, texts[3])


async def test_a_prefill_engine_killed_before_the_handshake_costs_a_recompute(
    real: Real, words: Callable[[int], str], tmp_path: Path
) -> None:
    """The engine has just been restarted, so the decode engine has never met it."""
    asks = [Ask(words(70), "chat")]
    texts = await real.alone(*asks)
    async with prefill_back(real), staged(real, tmp_path) as stage:
        stage.between = lambda: kill(real)
        await answered_without_a_pull(stage, asks[0], texts[0], "pull-status")
        assert await stage.handoffs() == {("answered", "pull-status"): 1}


async def test_a_prefill_engine_that_restarts_between_the_legs_is_not_mistaken_for_its_old_self(
    real: Real, words: Callable[[int], str], tmp_path: Path
) -> None:
    """Parameters name a life of an engine. Afterwards handoffs with the new life work."""
    before, stale, after = (Ask(words(80 + n)) for n in range(3))
    texts = await real.alone(before, stale, after)
    await assert_pulls(real, before, texts[0])  # so that the old life is known

    async def again() -> None:
        await kill(real)
        await start(real)

    limits = ("--kv-lease", "900", "--prefill-timeout", "900")
    async with prefill_back(real), staged(real, tmp_path, *limits) as stage:
        stage.answered = again  # takes longer than the rest of an answer may
        await answered_without_a_pull(stage, stale, texts[1], "pull-status")
    await assert_pulls(real, after, texts[2])
    assert (await real.freed()).expired == 0
    await real.assert_alive()


async def test_the_engines_are_as_good_as_new(real: Real, words: Callable[[int], str]) -> None:
    ask = Ask(words(100), "chat", stream=True)
    [text] = await real.alone(ask)
    await assert_pulls(real, ask, text)
    assert (await real.counters(PREFILL)).late == 0
