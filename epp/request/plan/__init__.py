"""From EndpointPickerConfig to what runs: names resolved, rules checked, defaults filled in."""

from .plan import Plan, ProfilePlan, Use
from .resolve import Options, default_plan, resolve

__all__ = ["Options", "Plan", "ProfilePlan", "Use", "default_plan", "resolve"]
