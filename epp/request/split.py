"""Whether a prompt is computed by another endpoint than the one that answers, and by whom. Pure.

The destination is chosen first, as for any request. What it would have to compute itself decides:
tokens are counted, not blocks, and they are the engine's own, since bytes only guess (fault B24).
A match that nobody knows of counts as none. Where nobody can prefill, the destination computes all
of it and the reason says so (fault D07).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from epp.framework import Decision, Endpoint, Request

from . import filters
from .pickers import Chance
from .schedule import Profile, schedule

MAX_CANDIDATES = 4


class Decider(StrEnum):
    PREFIX = "prefix"
    """Split what the destination would have to compute `threshold_tokens` or more of."""
    ALWAYS = "always"
    """Split whatever can be split; counts nothing, so it needs neither tokens nor matches."""
    NEVER = "never"


class Why(StrEnum):
    """The reason in a decision and in `epp_split_decisions_total`."""

    SPLIT = "split"
    NEVER = "never"
    """The operator's choice."""
    MODE = "mode"
    """A break-glass mode is on."""
    NOT_SPLITTABLE = "not-splittable"
    """One engine must compute all of it; `Request.whole` says why."""
    LOAD_ONLY = "load-only"
    """Nothing is known of tokens or matches."""
    TOKENS_ESTIMATED = "tokens-estimated"
    BELOW_THRESHOLD = "below-threshold"
    """The whole prompt is shorter than that."""
    CACHED = "cached"
    """The destination holds so much of the prompt that the rest is below the threshold."""
    NO_SIDECAR = "no-sidecar"
    """Nobody stands before the destination's engine who could hand over."""
    NO_PREFILL_PODS = "no-prefill-pods"
    """None is ready, or none that the gateway allows for this request."""
    FAILED = "failed"
    """Rating the prefill candidates raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRules:
    decider: Decider = Decider.PREFIX
    threshold_tokens: int = 512
    """Uncached tokens from which a prompt is worth a handoff. 512 fit beside running answers into
    one step of an engine (its token budget is 2,048 or more), so they hold up nobody, while a
    handoff costs two more round trips and the transfer."""
    candidates: int = 2
    """Prefill endpoints that the sidecar is told; it goes on to the next when one fails."""

    def __post_init__(self) -> None:
        if self.threshold_tokens < 1:
            raise ValueError("threshold_tokens must be at least 1; `never` splits nothing")
        if not 1 <= self.candidates <= MAX_CANDIDATES:
            raise ValueError(f"candidates must lie between 1 and {MAX_CANDIDATES}")


def verdict(request: Request, destination: Endpoint, rules: SplitRules, *, normal: bool) -> Why:
    """SPLIT, or the reason against it, before anybody has looked for prefill endpoints.

    `normal`: no break-glass mode is on.
    """
    if rules.decider is Decider.NEVER:
        return Why.NEVER
    if not normal:
        return Why.MODE
    if request.whole:
        return Why.NOT_SPLITTABLE
    if rules.decider is Decider.PREFIX:
        against = _against(request, destination, rules.threshold_tokens)
        if against is not None:
            return against
    return Why.SPLIT if destination.has_sidecar else Why.NO_SIDECAR


def _against(request: Request, destination: Endpoint, threshold: int) -> Why | None:
    """What the count of uncached tokens says against a split."""
    if not request.scored:
        return Why.LOAD_ONLY
    if not request.exact:
        return Why.TOKENS_ESTIMATED
    if request.prompt_tokens < threshold:
        return Why.BELOW_THRESHOLD
    if destination.match.missing(request.prompt_tokens) < threshold:
        return Why.CACHED
    return None


def with_prefill(
    decision: Decision,
    request: Request,
    eligible: Sequence[Endpoint],
    *,
    profile: Profile,
    rules: SplitRules,
    chance: Chance,
    normal: bool,
) -> Decision:
    """The decision with who prefills and the reason, or with the reason why nobody does.

    `eligible`: the ready endpoints that the gateway allows, whatever their role. Raises what
    `schedule` raises.
    """
    why = verdict(request, decision.chosen[0], rules, normal=normal)
    if why is not Why.SPLIT:
        return replace(decision, split=why)
    found = filters.prefillers(eligible, {endpoint.id for endpoint in decision.chosen})
    if not found:
        return replace(decision, split=Why.NO_PREFILL_PODS)
    rated = schedule(request, found, profile, chance, count=rules.candidates)
    told = f"{decision.chosen[0].match.missing(request.prompt_tokens):.0f} uncached tokens"
    return replace(
        decision,
        reasons=(*decision.reasons, f"split: {told}; prefill: {', '.join(rated.reasons)}"),
        split=Why.SPLIT,
        prefill=rated.chosen,
        prefill_table=rated.table,
        prefill_weights=rated.weights,
    )
