"""Whether tokens made here are an engine's: a few prompts that show what may differ. Pure."""

from array import array
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import zip_longest
from sys import byteorder
from typing import Any, Protocol

import msgspec

from epp.request.apis.prompt import Fields

from .tokenised import UnrenderableError

_TEXT = "Größe: 3.5 km² — naïve café, 你好, 🙂\tand\n\n  code: x = {'a': [1]}  "
_WORDS: tuple[dict[str, Any], ...] = (
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": _TEXT},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "And then?"},
)
_PARTS: tuple[dict[str, Any], ...] = (
    {"role": "user", "content": [{"type": "text", "text": t} for t in ("One", _TEXT)]},
)
_TOOLS: tuple[dict[str, Any], ...] = (
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather: today.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    },
)

PROBES: tuple[Fields, ...] = (
    (("prompt", msgspec.json.encode(_TEXT)),),
    (("messages", msgspec.json.encode(_WORDS)),),
    (("messages", msgspec.json.encode(_PARTS)),),
    (("messages", msgspec.json.encode(_WORDS)), ("tools", msgspec.json.encode(_TOOLS))),
)


class Local(Protocol):
    """Makes tokens here; see `local.LocalModel`."""

    def ids(self, fields: Fields) -> bytes: ...

    def keys(self, fields: Fields, seed: int) -> tuple[int, tuple[int, ...]]: ...


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two prompts differ; None: that one has ended."""

    position: int
    ours: int | None
    theirs: int | None


def difference(ours: bytes, theirs: bytes) -> Difference | None:
    """Of packed token ids."""
    if ours == theirs:
        return None
    pairs = zip_longest(_unpacked(ours), _unpacked(theirs))
    return next(Difference(at, *pair) for at, pair in enumerate(pairs) if pair[0] != pair[1])


async def compared(
    local: Local, ask: Callable[[Fields], Awaitable[bytes | None]]
) -> Difference | bool:
    """The first difference from the engine; else whether it answered anything at all."""
    answered = False
    for fields in PROBES:
        try:
            ours = local.ids(fields)
        except UnrenderableError:
            continue
        theirs = await ask(fields)
        if theirs is None:
            continue
        answered = True
        found = difference(ours, theirs)
        if found is not None:
            return found
    return answered


def _unpacked(ids: bytes) -> "array[int]":
    unpacked = array("I", ids)
    if byteorder == "big":  # pragma: no cover - no such machine to test with
        unpacked.byteswap()
    return unpacked
