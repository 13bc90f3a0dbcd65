"""A chat as a template wants it: what engines make of messages and tools before they render. Pure.

Only shapes whose treatment is certain are accepted. Everything else, from images to fields that
nobody has heard of, is `UnrenderableError`: the engine itself is asked.
"""

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from .tokenised import UnrenderableError

MAX_TOOLS_BYTES = 256 * 1024
"""Larger tools are not remembered in their decoded form."""
MAX_TOOL_SETS = 64
"""Decoded tools that are remembered."""

_BILLING = "x-anthropic-billing-header"
"""How a system text begins that changes with each request; engines leave its line out."""
_UNSUPPORTED = ("audio", "function_call", "refusal", "task", "tools")
_CALL = {"id", "type", "function"}
_CALLED = {"name", "arguments"}


def conversation(messages: Any, *, parts: bool) -> list[dict[str, Any]]:
    """Messages for a template that wants content as `parts`, or as text.

    Raises UnrenderableError.
    """
    if not isinstance(messages, list) or not messages:
        raise UnrenderableError("no messages")
    return [_message(one, parts=parts) for one in messages]


def tools(raw: bytes) -> list[dict[str, Any]]:
    """Tools with the members and in the order that engines hand to templates.

    Templates print them, and may not change them: equal bytes share one answer. Raises
    UnrenderableError.
    """
    return _remembered(raw) if len(raw) <= MAX_TOOLS_BYTES else _tools(raw)


def _message(message: Any, *, parts: bool) -> dict[str, Any]:
    if not isinstance(message, dict) or not isinstance(role := message.get("role"), str):
        raise UnrenderableError("a message without a role")
    if role == "developer" or any(message.get(name) is not None for name in _UNSUPPORTED):
        raise UnrenderableError("a message with more than text and calls")
    texts = _texts(message.get("content"))
    if role == "system":
        texts = [kept for text in texts if (kept := _unbilled(text)) is not None]
    made: dict[str, Any] = {"role": role}
    if not parts:
        made["content"] = "\n".join(filter(None, texts))
    elif role == "tool":
        made["content"] = "\n".join(texts)
    else:
        made["content"] = [{"type": "text", "text": text} for text in texts]
    if role == "assistant":
        _add_answer(made, message)
    elif role == "tool" and "tool_call_id" in message:
        made["tool_call_id"] = _string(message["tool_call_id"])
    if isinstance(message.get("name"), str):
        made["name"] = message["name"]
    return made


def _texts(content: Any) -> list[str]:
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise UnrenderableError("content that is neither text nor parts")
    return [_part(one) for one in content]


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and part.keys() == {"type", "text"} and part["type"] == "text":
        return _string(part["text"])
    raise UnrenderableError("a part that is not plain text")


def _unbilled(text: str) -> str | None:
    """Without the line of a client's accounts; None where nothing else is said."""
    if not text.startswith(_BILLING):
        return text
    return text.partition("\n")[2] or None


def _add_answer(made: dict[str, Any], message: dict[str, Any]) -> None:
    calls = message.get("tool_calls")
    if calls is not None:
        if not isinstance(calls, list):
            raise UnrenderableError("calls that are no list")
        if calls:
            made["tool_calls"] = [_call(one) for one in calls]
    thought = message.get("reasoning")
    thought = message.get("reasoning_content") if thought is None else thought
    if thought is not None:
        made["reasoning"] = made["reasoning_content"] = _string(thought)


def _call(call: Any) -> dict[str, Any]:
    """A call of a function; its arguments are what their text says, in the client's order."""
    if not isinstance(call, dict) or call.keys() != _CALL or call["type"] != "function":
        raise UnrenderableError("a call of unknown shape")
    function = call["function"]
    if not isinstance(function, dict) or function.keys() != _CALLED:
        raise UnrenderableError("a call of unknown shape")
    text = _string(function["arguments"])
    try:
        arguments = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        arguments = {}
    return {
        "id": _string(call["id"]),
        "function": {
            "arguments": arguments if isinstance(arguments, dict) else {},
            "name": _string(function["name"]),
        },
        "type": "function",
    }


def _tools(raw: bytes) -> list[dict[str, Any]]:
    try:
        decoded = json.loads(raw)
    except (ValueError, RecursionError):
        raise UnrenderableError("tools that are no JSON") from None
    if not isinstance(decoded, list) or not decoded:
        raise UnrenderableError("tools that are no list")
    return [_tool(one) for one in decoded]


_remembered: Callable[[bytes], list[dict[str, Any]]] = lru_cache(MAX_TOOL_SETS)(_tools)


def _tool(tool: Any) -> dict[str, Any]:
    """What an engine hands over: what it does not know is left out, what is absent is null."""
    if not isinstance(tool, dict) or tool.get("type", "function") != "function":
        raise UnrenderableError("a tool that is no function")
    function = tool.get("function")
    if not isinstance(function, dict) or "defer_loading" in tool or "defer_loading" in function:
        raise UnrenderableError("a tool of unknown shape")
    described, parameters = function.get("description"), function.get("parameters")
    strict = function.get("strict")
    odd = (
        not (described is None or isinstance(described, str)),
        not (parameters is None or isinstance(parameters, dict)),
        not (strict is None or isinstance(strict, bool)),
    )
    if any(odd):
        raise UnrenderableError("a tool of unknown shape")
    made = {
        "name": _string(function.get("name")),
        "description": described,
        "parameters": parameters,
    }
    if strict is not None:
        made["strict"] = strict
    return {"type": "function", "function": made}


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise UnrenderableError("a member that should be text")
    return value
