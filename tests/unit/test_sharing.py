"""Which bodies two engines may share: the picker's sieve says what the sidecar will say."""

import json
from pathlib import Path

import pytest

from epp.request.apis import catalog, openai
from tests.fakes.desk import ask, post

GOLDEN = Path(__file__).parents[1] / "data" / "handoff" / "d02_splittable.jsonl"
ROWS = [json.loads(line) for line in GOLDEN.read_text().splitlines()]


def with_model(body: str) -> str:
    return body if '"model"' in body else body.replace("{", '{"model":"m",', 1)


@pytest.mark.parametrize("row", ROWS, ids=[row["name"] for row in ROWS])
def test_the_picker_and_the_sidecar_agree_on_a_body(row: dict[str, str]) -> None:
    parsed = catalog.parse(post(with_model(row["body"]).encode(), path=row["api"]))
    assert parsed.whole == (row["reason"] or "")


@pytest.mark.parametrize(
    ("body", "path", "why"),
    [
        (ask("x"), "/v1/completions", ""),
        (ask("x"), "/v1/completions/?a=b", ""),
        (ask("x", max_tokens=True), "/v1/completions", "one-token"),
        (ask("x", max_tokens=2.0), "/v1/completions", "one-token"),
        (ask(["a", ""]), "/v1/completions", "prompts"),
        (ask([[1], []]), "/v1/completions", "prompts"),
        (ask("x"), "/v1/embeddings", "api"),
        (ask("x"), "/v1/chat/completions/render", "api"),
        ({"model": "m", "input": "x"}, "/v1/responses", ""),
        ({"model": "m", "input": "x", "tools": 1}, "/v1/responses", "server-tools"),
        ({"model": "m", "max_tokens": "9", "messages": []}, "/v1/messages", "one-token"),
        ({"token_ids": [1], "sampling_params": {"n": "1"}}, "/inference/v1/generate", "n"),
    ],
)
def test_what_is_not_plainly_harmless_stays_whole(body: object, path: str, why: str) -> None:
    assert catalog.parse(post(body, path=path)).whole == why


def test_text_that_the_fast_decoder_refuses_stays_whole() -> None:
    parsed = openai.completions("/v1/completions", b'{"model":"m","prompt":"\\ud83d"}')
    assert parsed.whole
