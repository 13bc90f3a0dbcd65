"""Objectives and model rewrites from a watched file, for pools without Kubernetes.

`epp.config.objectives_file` says what the file holds. A bad file never replaces what is in force.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from epp.config.objectives_file import Declared, Warn, parse_objectives
from epp.config.text_file import read_file
from epp.framework import PoolId

from .reload import Reload

T = TypeVar("T")


def follow(
    path: Path,
    pool: PoolId,
    *,
    make: Callable[[Declared], T],
    swap: Callable[[T], None],
    warn: Warn,
    interval_s: float = 0.5,
    settle_s: float = 0.05,
) -> Reload[T]:
    """Read the file for the first time, take it over, and give what follows it from then on.

    Raises ConfigError, of the first reading only. `make` may take its time; `swap` may not.
    """

    def build(text: bytes) -> T:
        return make(parse_objectives(text, str(path), pool=pool, warn=warn))

    text = read_file(path)
    swap(build(text))
    return Reload(path, text=text, build=build, swap=swap, interval_s=interval_s, settle_s=settle_s)
