"""Values of flags in the spellings that Go programs take: durations, sizes, lists. Pure.

Each reader takes text, lets other values through for pydantic to judge, and raises ValueError with
a sentence that says what is expected. Each has a writer for people.
"""

import math
import re
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600}
_SIZE = re.compile(r"(\d+\.?\d*|\.\d+)(Ki|Mi|Gi|Ti|k|M|G|T)?[Bb]?")
_FACTORS = {
    "": 1,
    **{unit: 1000**power for power, unit in enumerate(("k", "M", "G", "T"), 1)},
    **{unit: 1024**power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti"), 1)},
}


@dataclass(frozen=True, slots=True)
class Env:
    """Mark of a setting that this variable of the environment gives where no flag does."""

    name: str


def seconds(value: object) -> object:
    """Seconds of `30s`, `50ms`, `1m30s`, or of a plain number, which is in seconds already."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    parts = _PART.findall(text)
    if parts and "".join(number + unit for number, unit in parts) == text:
        return math.fsum(float(number) * _SECONDS[unit] for number, unit in parts)
    try:
        return float(text)
    except ValueError:
        raise ValueError("expected a duration such as 30s, 50ms or 1m30s") from None


def seconds_text(value: float) -> str:
    """`30s`, `250ms`: what `seconds` reads back."""
    return f"{value:g}s" if value >= 1 or value == 0 else f"{value * 1000:g}ms"


def size(value: object) -> object:
    """Bytes of `10MiB`, `10Mi`, `1G`, or of a plain number. Only whole bytes are meant."""
    if not isinstance(value, str):
        return value
    found = _SIZE.fullmatch(value.strip())
    number = float(found[1]) * _FACTORS[found[2] or ""] if found else 0.5
    if not number.is_integer():
        raise ValueError("expected a size such as 10MiB, or a number of bytes")
    return int(number)


def size_text(value: int) -> str:
    """`10MiB`: what `size` reads back."""
    for unit in ("GiB", "MiB", "KiB"):
        if value and value % _FACTORS[unit[:2]] == 0:
            return f"{value // _FACTORS[unit[:2]]}{unit}"
    return str(value)


def optional_size(value: object) -> object:
    """The same; 0 stands for the default, as the reference has it."""
    return size(value) or None


def listed(value: object) -> object:
    """The parts of `a,b`; those of several flags come as a list. Empty parts do not count."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple):
        return value
    return tuple(part.strip() for text in texts for part in str(text).split(",") if part.strip())


def matching(pattern: str, expected: str) -> AfterValidator:
    """For a text of this shape; another one is told in words what is `expected`."""
    shape = re.compile(pattern)

    def judged(text: str) -> str:
        if shape.fullmatch(text) is None:
            raise ValueError(f"expected {expected}")
        return text

    return AfterValidator(judged)


CollectorUrl = Annotated[
    str, matching(r"https?://[^\s/]+/\S+", "a URL such as http://collector:4318/v1/traces")
]
Seconds = Annotated[float, BeforeValidator(seconds), Field(allow_inf_nan=False)]
Size = Annotated[int, BeforeValidator(size)]
OptionalSize = Annotated[int | None, BeforeValidator(optional_size)]
Names = Annotated[tuple[str, ...], BeforeValidator(listed)]
