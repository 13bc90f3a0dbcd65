"""Values of flags in the spellings that Go programs take: durations, quantities, lists. Pure.

Each function raises ValueError with a sentence that says what is expected.
"""

import math
import re
from typing import Annotated

from pydantic import BeforeValidator

_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_QUANTITY = re.compile(r"(\d+\.?\d*|\.\d+)(Ki|Mi|Gi|Ti|k|M|G|T)?B?")
_FACTORS = {
    "": 1,
    **{unit: 1000**power for power, unit in enumerate(("k", "M", "G", "T"), 1)},
    **{unit: 1024**power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti"), 1)},
}


def seconds(value: object) -> object:
    """Seconds of `30s`, `50ms`, `1m30s`, or of a plain number, which is in seconds already."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    try:
        number = float(text)
    except ValueError:
        parts = _PART.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            raise ValueError("expected a duration such as 30s, 50ms or 1m30s") from None
        units = ((part, unit.replace("µ", "u").replace("μ", "u")) for part, unit in parts)
        return math.fsum(float(part) * _SECONDS[unit] for part, unit in units)
    if not math.isfinite(number):
        raise ValueError("expected a duration such as 30s, 50ms or 1m30s")
    return number


def quantity(value: object) -> object:
    """Bytes of `10MiB`, `10Mi`, `1G`, or of a plain number. Only whole bytes are meant."""
    if not isinstance(value, str):
        return value
    found = _QUANTITY.fullmatch(value.strip())
    size = float(found[1]) * _FACTORS[found[2] or ""] if found else 0.5
    if not size.is_integer():
        raise ValueError("expected a size such as 10MiB, or a number of bytes")
    return int(size)


def listed(value: object) -> object:
    """The parts of `a,b`; those of several flags come as a list. Empty parts do not count."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple):
        return value
    return tuple(part.strip() for text in texts for part in str(text).split(",") if part.strip())


Seconds = Annotated[float, BeforeValidator(seconds)]
Bytes = Annotated[int, BeforeValidator(quantity)]
Listed = Annotated[tuple[str, ...], BeforeValidator(listed)]
