"""The profiles that stand without a configuration, and the live switch between modes.

The default profile weighs everything on one scale. A queue of 8 requests more than the emptiest
candidate's costs 3, which nothing else can outweigh alone: a short cached prefix (worth 1) is left
for an idle endpoint at 3 requests more, a long one (worth 2) at 6. Running requests count in part:
without them a warm endpoint that answers quickly would take a whole burst of equal requests, since
none of them ever waits there. Of 40 at once on 4 equal endpoints none gets more than 14. Ranges
are absolute, so that one overloaded endpoint changes nothing among the others (fault B12). A LoRA
adapter that runs somewhere is worth one request more than free room for it, and room 4 more than
none; requests for a base model do not feel it (fault B22).
"""

from enum import StrEnum

from epp.framework import registry

from .schedule import Profile, Weighted


class Mode(StrEnum):
    """What the operator lets the picker do; `load-only` and `random` are break-glass."""

    NORMAL = "normal"
    LOAD_ONLY = "load-only"
    RANDOM = "random"


class ModeSwitch:
    """The mode in force. Read once per decision, changed by the admin port at any time."""

    def __init__(self, mode: str = Mode.NORMAL) -> None:
        self._mode = Mode(mode)

    @property
    def mode(self) -> Mode:
        return self._mode

    @property
    def modes(self) -> tuple[str, ...]:
        return tuple(Mode)

    def switch(self, mode: str) -> None:
        """Raises ValueError for a word that is not a mode; the old one stays."""
        self._mode = Mode(mode)


def default_profile() -> Profile:
    """Prefix, queue, pending tokens, decode room, KV cache, adapters. Raises PluginError."""
    return Profile("default", (_prefix(), *_load_scorers()))


def load_only_profile() -> Profile:
    """The same without the prefix. Raises PluginError."""
    return Profile("load-only", _load_scorers())


def prefill_profile() -> Profile:
    """Prefix, queue and pending tokens: a prefill ends before its answer takes room. Raises
    PluginError.

    Tokens weigh as much as the queue: a prefill pod works them off one prompt after the other, so
    that two long prompts ahead are worse than five short ones.
    """
    return Profile(
        "prefill",
        (
            _prefix(),
            _weighted("queue-scorer", 3.0, minRange=8, maxRange=8),
            _weighted("token-load-scorer", 3.0, queueThresholdTokens=65_536),
        ),
    )


def _prefix() -> Weighted:
    return _weighted("prefix-cache-scorer", 2.0, matchLengthWeight=0.5, matchLengthScaleTokens=4096)


def _load_scorers() -> tuple[Weighted, ...]:
    return (
        _weighted("queue-scorer", 3.0, minRange=8, maxRange=8, runningWeight=0.6),
        _weighted("token-load-scorer", 1.0, queueThresholdTokens=65_536),
        _weighted("decode-load-scorer", 1.0),
        _weighted("kv-cache-utilization-scorer", 1.0),
        _weighted("lora-affinity-scorer", 2.0),
    )


def _weighted(kind: str, weight: float, **parameters: float) -> Weighted:
    return Weighted(kind, registry.build_scorer(kind, parameters), weight)
