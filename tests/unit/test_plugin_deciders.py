"""Whether a prompt is computed elsewhere: tokens are counted, and guesses split nothing."""

from typing import Any

import pytest

from epp.errors import PluginError
from epp.framework import (
    Match,
    Request,
    Source,
    registry,
)
from tests.fakes.endpoints import endpoint


def decide(kind: str, cached: float = 0, *, trust: float = 1.0, **of: Any) -> str:
    """What a decider of this type says of a request that `cached` tokens stand ready for."""
    kind, _, limits = kind.partition(" ")
    found = registry.find(kind)
    assert found is not None
    names = ("nonCachedTokens", "promptTokens")
    given = dict(zip(names, map(int, limits.split()), strict=False))
    match = Match(tokens=int(cached), source=Source.PREDICTED, trust=trust)
    asked = Request(id="r", api="completions", path="/", **{"exact": True} | of)
    return found.build(given).decide(asked, endpoint("pod", match=match))


@pytest.mark.parametrize(
    ("limits", "prompt", "cached", "verdict"),
    [
        ("0", 100_000, 0, "never"),
        ("512", 511, 0, "below-threshold"),
        ("512", 512, 0, "split"),
        ("512", 512, 1, "cached"),
        ("512", 1024, 512, "split"),
        ("512", 1024, 513, "cached"),
        ("16 1024", 1023, 0, "below-threshold"),
        ("16 1024", 1024, 0, "split"),
        ("10", 20, 0, "split"),
        ("512", 0, 0, "below-threshold"),
    ],
)
def test_uncached_tokens_decide_from_the_threshold_on(
    limits: str, prompt: int, cached: int, verdict: str
) -> None:
    said = decide(f"prefix-based-pd-decider {limits}", cached, prompt_tokens=prompt)
    assert said == verdict


def test_a_match_counts_as_far_as_it_is_trusted() -> None:
    said = decide("prefix-based-pd-decider 512", 1000, trust=0.4, prompt_tokens=1024)
    assert said == "split"
    assert decide("prefix-based-pd-decider 512", 1000, trust=1, prompt_tokens=1024) == "cached"


@pytest.mark.parametrize(
    ("of", "verdict"), [({"exact": False}, "tokens-estimated"), ({"scored": False}, "load-only")]
)
def test_a_guess_splits_nothing(of: dict[str, Any], verdict: str) -> None:
    assert decide("prefix-based-pd-decider 512", prompt_tokens=9999, **of) == verdict


@pytest.mark.parametrize("name", ["nonCachedTokens", "promptTokens"])
def test_negative_tokens_are_refused(name: str) -> None:
    found = registry.find("prefix-based-pd-decider")
    assert found is not None
    with pytest.raises(PluginError, match=f"{name} must be at least 0"):
        found.build({name: -1})


def test_some_deciders_look_at_little_or_nothing() -> None:
    assert decide("always-disagg-pd-decider", exact=False) == "split"
    assert decide("never-disagg-pd-decider", prompt_tokens=10**6) == "never"
    assert decide("always-disagg-multimodal-decider", prompt_tokens=10**6) == "text-only"
    assert decide("always-disagg-multimodal-decider", media_tokens=1024) == "split"
