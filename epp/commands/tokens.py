"""`epp bench tokens`: what it costs in CPU to make the tokens of chats here.

The body of a request is parsed, its chat rendered, tokenized and hashed to block keys, as a
decision does it, with the files of a model. The text is English prose, another for each request. A
short chat is new; a long one is measured at its tenth turn, of which the nine before were seen. The
same tokens by the reference library are the comparison.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from random import Random
from statistics import median

import msgspec

from epp.request.apis.openai import chat
from epp.request.apis.prompt import TextPrompt
from epp.request.tokens import MAX_KEYS, Prefixes
from epp.request.tokens.encoder import Reference
from epp.request.tokens.files import read
from epp.request.tokens.local import LocalModel
from epp.state import blocks

PREFIX_BYTES = 64 * 1024 * 1024
BYTES_PER_TOKEN = 4.4
"""Of this prose, by the tokenizers of the day; a chat has about as many tokens as are asked for."""
TURNS = 10
ANSWER_TOKENS = 500
REFERENCE_RUNS = 3


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU of all threads in microseconds. What else the machine does makes caches cold, so that the
    least is the cost of the work alone."""

    name: str
    tokens: int
    parsing: float
    """Least, of reading the body."""
    least: float
    """Of rendering, tokenizing and hashing."""
    median: float
    reference: float
    """Median of tokenizing alone, by the reference library."""


def bench(folder: Path, *, requests: int, seed: int, as_json: bool) -> str:
    """Costs of both chats, as text or JSON. Raises ConfigError for files that do not serve."""
    prefixes = Prefixes(PREFIX_BYTES, block_tokens=blocks.OWN_BLOCK_TOKENS, max_keys=MAX_KEYS)
    given = read(folder)
    model = LocalModel(given, prefixes)
    reference = Reference(given.tokenizer)
    rng = Random(seed)
    costs = [
        _measured("new chat", model, reference, _new_chats(rng, 8_000, requests)),
        _measured("tenth turn", model, reference, _long_chats(model, rng, 100_000, requests // 5)),
    ]
    if as_json:
        return json.dumps({"encoder": model.encoder, "cpu_us": [asdict(cost) for cost in costs]})
    lines = [
        f"CPU in microseconds, {model.encoder}, {requests} requests",
        f"{'':>12} {'tokens':>8} {'parsing':>8} {'least':>8} {'median':>8} {'reference':>10}",
    ]
    lines += [
        f"{cost.name:>12} {cost.tokens:>8} {cost.parsing:>8.0f} {cost.least:>8.0f}"
        f" {cost.median:>8.0f} {cost.reference:>10.0f}"
        for cost in costs
    ]
    return "\n".join(lines)


def _measured(name: str, model: LocalModel, reference: Reference, bodies: Iterator[bytes]) -> Cost:
    parsing, made, sizes, texts = [], [], [], []
    for body in bodies:
        begin = time.process_time()
        prompt = chat("/v1/chat/completions", body).prompt
        read_at = time.process_time()
        assert isinstance(prompt, TextPrompt)
        assert prompt.tokenize is not None
        tokens, _ = model.keys(prompt.tokenize, seed=1)
        made.append(time.process_time() - read_at)
        parsing.append(read_at - begin)
        sizes.append(tokens)
        texts.append(model.text(prompt.tokenize)[0])
    slow = [
        _seconds(partial(reference.ids, text, special=False)) for text in texts[:REFERENCE_RUNS]
    ]
    return Cost(
        name=name,
        tokens=int(median(sizes)),
        parsing=1e6 * min(parsing),
        least=1e6 * min(made),
        median=1e6 * median(made),
        reference=1e6 * median(slow),
    )


def _seconds(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def _new_chats(rng: Random, tokens: int, count: int) -> Iterator[bytes]:
    for _ in range(count):
        yield _body([_turn("system", _prose(rng, 100)), _turn("user", _prose(rng, tokens - 100))])


def _long_chats(model: LocalModel, rng: Random, tokens: int, count: int) -> Iterator[bytes]:
    """Tenth turns of chats whose other turns were tokenized before."""
    question = tokens // TURNS - ANSWER_TOKENS
    for _ in range(max(1, count)):
        turns = [_turn("system", _prose(rng, 100))]
        for number in range(TURNS):
            turns.append(_turn("user", _prose(rng, question)))
            if number == TURNS - 1:
                break
            model.keys((("messages", msgspec.json.encode(turns)),), seed=1)
            turns.append(_turn("assistant", _prose(rng, ANSWER_TOKENS)))
        yield _body(turns)


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _body(turns: list[dict[str, str]]) -> bytes:
    return msgspec.json.encode({"model": "m", "messages": turns, "max_tokens": 64})


def _prose(rng: Random, tokens: int) -> str:
    """Lines of the language's own manual, in any order."""
    lines = _manual()
    size, chosen = 0, []
    while size < tokens * BYTES_PER_TOKEN:
        chosen.append(rng.choice(lines))
        size += len(chosen[-1]) + 1
    return "\n".join(chosen)


@cache
def _manual() -> list[str]:
    from pydoc_data.topics import topics  # noqa: PLC0415 - half a megabyte

    return [line.strip() for text in topics.values() for line in text.splitlines() if line.strip()]
