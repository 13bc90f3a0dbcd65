"""Greedy answers of prompts that were handed over, and the bytes that moved for them."""

import asyncio
import random
import re
from collections.abc import Callable

import pytest

from tests.real.conftest import DECODE, PREFILL, Ask, Real
from tests.timing import scaled

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="session")]

TOKENS = (1, 2, 3, 31, 32, 33, 63, 64, 65, 95, 96, 97, 128, 159, 200, 255, 256, 257, 300, 384)
LONGER = (385, 449, 512, 599, 600)
WORDS = (1, 2, 5, 9, 14, 20, 40, 70, 100, 130)


def asks(words: Callable[[int], str]) -> list[Ask]:
    """Every kind of request, over lengths on both sides of block borders."""
    rng = random.Random(7)
    ids = [Ask([rng.randrange(5, 2048) for _ in range(count)]) for count in (*TOKENS, *LONGER)]
    texts = [Ask(words(count)) for count in WORDS]
    chats = [Ask(words(count), "chat") for count in WORDS]
    both = [*ids, *texts, *chats]
    return [Ask(ask.prompt, ask.api, stream=number % 2 == 1) for number, ask in enumerate(both)]


async def test_texts_equal_those_of_one_engine_and_every_block_is_pulled_once(
    real: Real, words: Callable[[int], str]
) -> None:
    everything = asks(words)
    assert len({str(ask.prompt) for ask in everything}) == len(everything) >= 30
    alone = [await real.ask(real.engine(PREFILL), ask) for ask in everything]
    await real.forget(PREFILL)  # what was computed to compare with does not help
    counted = await real.handoffs()
    kept = await real.counters(PREFILL)
    lengths = []
    for ask, expected in zip(everything, alone, strict=True):
        before = await real.counters(DECODE)
        answer = await real.ask(real.gateway, ask)
        after = await real.pulled(before, 1)
        assert (answer.status, answer.text) == (200, expected.text), ask
        assert answer.text
        assert answer.prompt_tokens == expected.prompt_tokens
        assert b"kv_transfer_params" not in answer.raw
        assert after.transfers - before.transfers == 1, ask
        blocks = real.blocks(answer.prompt_tokens)
        assert after.pulled_bytes - before.pulled_bytes == blocks * real.block_bytes, ask
        lengths.append(answer.prompt_tokens)
    assert min(lengths) == 1
    assert 600 in lengths
    assert len({answer.text for answer in alone}) > len(alone) * 3 // 4  # not all the same words
    split = ("answered", "split")
    await real.counted({**counted, split: counted[split] + len(everything)})
    now = await real.freed()
    assert (now.expired, now.late) == (kept.expired, kept.late)


async def test_the_decode_engine_logs_as_many_transfers_as_it_counts(real: Real) -> None:
    counted = (await real.counters(DECODE)).transfers
    assert counted > 0
    log = real.fleet.supervisor.log("decode-0")
    async with asyncio.timeout(scaled(30)):  # it logs every ten seconds
        while True:
            found = re.findall(r"Num successful transfers=(\d+)", log.read_text(errors="replace"))
            if sum(map(int, found)) == counted:
                return
            await asyncio.sleep(1)


async def test_sixteen_at_once_do_not_get_each_others_answers(
    real: Real, words: Callable[[int], str]
) -> None:
    prompts = [words(10 + 7 * number) for number in range(16)]
    both = [Ask(prompt, "chat" if number % 3 else "completions", stream=number % 2 == 0)
            for number, prompt in enumerate(prompts)]  # fmt: skip
    alone = [await real.ask(real.engine(PREFILL), ask) for ask in both]
    await real.forget(PREFILL)
    before, kept = await real.counters(DECODE), await real.counters(PREFILL)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(real.ask(real.gateway, ask)) for ask in both]
    for task, expected in zip(tasks, alone, strict=True):
        assert (task.result().status, task.result().text) == (200, expected.text)
    after = await real.pulled(before, len(both))
    blocks = sum(real.blocks(answer.prompt_tokens) for answer in alone)
    assert after.pulled_bytes - before.pulled_bytes == blocks * real.block_bytes
    assert (await real.freed()).expired == kept.expired
