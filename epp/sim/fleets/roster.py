"""Which engines a fleet has, and what each of them is for."""

from dataclasses import dataclass
from typing import Literal

from epp.errors import LocalError
from epp.framework import Role

EngineKind = Literal["sim", "vllm"]
"""Simulated by us, or real `vllm serve` processes on this machine's CPUs."""
DEFAULT_ENGINES = 4


@dataclass(frozen=True, slots=True)
class Member:
    """One engine with its sidecar."""

    name: str
    """Of the engine's part, and in the endpoints file."""
    role: Role = Role.UNLABELLED

    @property
    def sidecar(self) -> str:
        """Name of the sidecar's part."""
        return f"sidecar-{self.name.removeprefix('engine-')}"


def roster(engines: int, prefill: int, decode: int) -> tuple[Member, ...]:
    """Plain engines, or some that prefill for those that decode; all in the order of their ports.

    Raises LocalError for a mixture, or for one role without the other.
    """
    if not prefill and not decode:
        return tuple(Member(f"engine-{number}") for number in range(engines))
    if engines:
        raise LocalError("--engines means engines without a role: leave it out beside --prefill")
    if prefill < 1 or decode < 1:
        raise LocalError("--prefill and --decode belong together: at least one engine each")
    return (
        *(Member(f"prefill-{number}", Role.PREFILL) for number in range(prefill)),
        *(Member(f"decode-{number}", Role.DECODE) for number in range(decode)),
    )
