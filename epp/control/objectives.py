"""Objectives and model rewrites from a watched file, for pools without Kubernetes.

`epp.config.objectives_file` says what the file holds. A bad file never replaces what is in force.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import structlog

from epp.config.objectives_file import Declared, parse_objectives
from epp.config.text_file import read_file
from epp.framework import PoolId

from .reload import Reload

T = TypeVar("T")

log = structlog.get_logger(__name__)


def follow(
    path: Path | None,
    pool: PoolId,
    *,
    make: Callable[[Declared], T],
    swap: Callable[[T], None],
    interval_s: float = 0.5,
    settle_s: float = 0.05,
) -> Reload[T] | None:
    """Read the file for the first time, take it over, and give what follows it from then on.

    Nothing without a path. Raises ConfigError, of the first reading only. `make` may take its time;
    `swap` may not.
    """
    if path is None:
        return None

    def build(text: bytes) -> T:
        return make(parse_objectives(text, str(path), pool=pool, warn=_warn))

    text = read_file(path)
    swap(build(text))
    return Reload(path, text=text, build=build, swap=swap, interval_s=interval_s, settle_s=settle_s)


def _warn(sentence: str) -> None:
    log.warning("objectives file", warning=sentence)
