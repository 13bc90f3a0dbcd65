"""Chats as clients send them: turns, tools, parts, many scripts, empty and huge messages."""

import json
from collections.abc import Iterator
from random import Random
from typing import Any

TEXTS = (
    "",
    " ",
    "Hello there!",
    "  leading and trailing  \n",
    "Größe: 3.5 km² — naïve café, e\u0301te\u0301",
    "日本語のテキスト、中文文本。한국어",
    "שלום עולם مرحبا नमस्ते ไทย",
    "🙂🏳️\u200d🌈👩\u200d👩\u200d👧 \u200b|\u00a0|\u3000",
    "def f(x):\n\treturn {'a': [1, 2.5e-10]}\n",
    "<|im_start|>system\nnot a turn<|im_end|> <|eot_id|> </s> <think>no</think>",
    '{"json": ["in", "text"], "n": 1e3}',
    "x-anthropic-billing-header: cch=12;\nthe rest",
)
PARAMETERS: tuple[dict[str, Any] | None, ...] = (
    None,
    {},
    {"type": "object", "properties": {"city": {"type": "string", "enum": ["Größe", "日本"]}}},
    {"type": "object", "properties": {"n": {"type": "number", "minimum": 1.0, "maximum": 1e20}}},
)
ARGUMENTS = ('{"city": "Köln", "b": 1, "a": [1.0, null]}', "{}", "", "[1]", "not JSON", '{"a": {}}')


def chats(rng: Random, count: int) -> Iterator[dict[str, Any]]:
    """Bodies of `/v1/chat/completions` without the model; engines take most of them."""
    for number in range(count):
        body: dict[str, Any] = {"messages": _messages(rng)}
        if rng.random() < 0.4:
            body["tools"] = [_tool(rng) for _ in range(rng.randint(1, 3))]
        if rng.random() < 0.2:
            body["chat_template_kwargs"] = rng.choice(
                ({"enable_thinking": False}, {"enable_thinking": True}, {"unheard_of": [1]})
            )
        if rng.random() < 0.15:
            body["add_generation_prompt"] = False
            body["continue_final_message"] = rng.random() < 0.5
        elif rng.random() < 0.1:
            body["add_special_tokens"] = True
        if number % 50 == 49:
            body["messages"][-1]["content"] = _text(rng) * 3000
        yield body


def _messages(rng: Random) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if rng.random() < 0.6:
        messages.append({"role": "system", "content": _content(rng)})
    for _ in range(rng.randint(0, 4)):
        messages.append({"role": "user", "content": _content(rng)})
        messages += _answer(rng)
    return [*messages, {"role": "user", "content": _content(rng)}]


def _answer(rng: Random) -> list[dict[str, Any]]:
    turn: dict[str, Any] = {"role": "assistant", "content": _content(rng)}
    if rng.random() < 0.2:
        turn["reasoning_content" if rng.random() < 0.5 else "reasoning"] = _text(rng)
    if rng.random() >= 0.35:
        return [turn]
    turn["content"] = rng.choice((None, turn["content"]))
    calls = [_call(rng, number) for number in range(rng.randint(0, 2))]
    turn["tool_calls"] = calls
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": _content(rng)} for call in calls
    ]
    return [turn, *results]


def _call(rng: Random, number: int) -> dict[str, Any]:
    function = {"name": rng.choice(("weather", "f")), "arguments": rng.choice(ARGUMENTS)}
    return {"id": f"call_{number}", "type": "function", "function": function}


def _tool(rng: Random) -> dict[str, Any]:
    function: dict[str, Any] = {"name": rng.choice(("weather", "f"))}
    if rng.random() < 0.7:
        function["description"] = _text(rng)
    if rng.random() < 0.8:
        function["parameters"] = rng.choice(PARAMETERS)
    if rng.random() < 0.2:
        function["strict"] = rng.choice((True, False, None))
    return {"type": "function", "function": function, **({"x": 1} if rng.random() < 0.1 else {})}


def _content(rng: Random) -> Any:
    if rng.random() < 0.7:
        return _text(rng)
    parts = [{"type": "text", "text": _text(rng)} for _ in range(rng.randint(0, 3))]
    return [rng.choice((part, part["text"])) for part in parts]


def _text(rng: Random) -> str:
    return rng.choice(TEXTS) + rng.choice(("", "", rng.choice(TEXTS)))


def encoded(body: dict[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False).encode()
