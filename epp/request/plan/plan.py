"""What a configuration comes to, before anything is built. Plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from epp.framework.registry import PluginType


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One plugin as the configuration uses it."""

    reference: str
    """Name by which the configuration refers to it; the name in metrics and explanations."""
    type: PluginType
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])
    where: str = ""
    """`file:line:column` of its entry; empty where nobody wrote it and a rule added it."""

    @property
    def added(self) -> bool:
        """A rule put it in; the configuration does not name it."""
        return not self.where

    def build(self) -> Any:
        """Raises PluginError."""
        return self.type.build(self.parameters, self.where)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePlan:
    """Filters in order, scorers with weights, and who picks."""

    name: str
    filters: tuple[Use, ...] = ()
    scorers: tuple[tuple[Use, float], ...] = ()
    picker: Use


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that decides about requests."""

    source: str
    """File, or `default`."""
    profiles: Mapping[str, ProfilePlan]
    """In the order of the configuration."""
    handler: Use
    detector: Use
    """Says how full the pool is."""
    admitters: tuple[Use, ...] = ()
    """Say whether a request is served at all, in the order of the configuration."""
    deciders: Mapping[str, Use] = field(default_factory=dict[str, Use])
    """By their reference; the handler's parameters name them."""
    producers: Mapping[str, tuple[Use, ...]] = field(default_factory=dict[str, tuple[Use, ...]])
    """By the data they feed: a source and its reader feed one kind together, and predictions stand
    in for precise matches."""
    consumers: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """By the data: references of the plugins that read it."""
    parsers: tuple[str, ...] | None = None
    """Types of parsers that were chosen; None: those that `catalog.Rules` has by itself."""
    notes: tuple[str, ...] = ()
    """What a user should know: deprecated names, entries that nothing refers to."""
