"""What the doctor has to say: each finding with its fix. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Level(StrEnum):
    """How much it matters."""

    ERROR = "error"
    """Requests fail, or go where they should not."""
    WARNING = "warning"
    """It works, worse than it could or not for long."""
    NOTE = "note"
    """Nothing to mend: what cannot be told, or be done better there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong."""

    check: str
    """One of the checks' names, the same for ever."""
    level: Level
    where: str
    """`Kind namespace/name`, and the container where there is one."""
    what: str
    fix: str


_ORDER = tuple(Level)


def ordered(findings: Sequence[Finding]) -> list[Finding]:
    """The worst first, each once."""
    unique = dict.fromkeys(findings)
    return sorted(unique, key=lambda one: (_ORDER.index(one.level), one.check, one.where))


def document(findings: Sequence[Finding], looked_at: int) -> dict[str, Any]:
    """For machines. `looked_at`: objects."""
    return {
        "objects": looked_at,
        "counts": _counts(findings),
        "findings": [asdict(one) for one in findings],
    }


def shown(findings: Sequence[Finding], looked_at: int) -> str:
    """For people."""
    lines: list[str] = []
    for one in findings:
        lines += [
            f"{one.level}  {one.check}  {one.where}",
            f"  {one.what}",
            f"  fix: {one.fix}",
            "",
        ]
    counts = ", ".join(
        f"{number} {level}{'s' * (number != 1)}" for level, number in _counts(findings).items()
    )
    return "\n".join([*lines, f"{looked_at} objects: {counts}"]) + "\n"


def _counts(findings: Sequence[Finding]) -> dict[str, int]:
    found = Counter(one.level for one in findings)
    return {level.value: found[level] for level in Level}
