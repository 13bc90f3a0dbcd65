"""Field faults of configurations, by id. A bad one stops the start, and says where it is wrong."""

import subprocess
import sys
from pathlib import Path

import pytest

from epp.errors import ConfigError
from epp.request.plan.live import build
from epp.request.plan.resolve import resolve
from tests.timing import scaled

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"


def refused(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve((HEAD + text).encode(), "f")
    return str(caught.value)


def laugh(number: int) -> str:
    return f"[{', '.join([f'*y{number - 1}'] * 9)}]"


def weighing(weight: str) -> str:
    return (
        "plugins:\n- type: queue-scorer\nschedulingProfiles:\n- name: a\n  plugins:\n"
        f"  - pluginRef: queue-scorer\n    weight: {weight}\n"
    )


@pytest.mark.parametrize(
    "weight", ["-1", "-0.5", ".nan", ".inf", "-.inf", "1e400", "'nan'", "heavy", "true", "[1]"]
)
def test_B09_a_weight_that_is_no_number_of_at_least_0_is_refused(weight: str) -> None:
    """Protected by `_weight` in epp/config/picker_config.py; red when it lets any number pass."""
    assert refused(weighing(weight)).startswith("f:9:5 'weight': ")


def test_B09_weights_from_0_on_are_taken() -> None:
    """Protected by `_weight` in epp/config/picker_config.py; red when it refuses 0."""
    for weight, number in (("0", 0.0), ("0.25", 0.25), ("1e2", 100.0)):
        plan = resolve((HEAD + weighing(weight)).encode(), "f")
        assert build(plan).profiles["a"].weights == {"queue-scorer": number}


@pytest.mark.parametrize("number", [".nan", ".inf", "-.inf", "1e400"])
@pytest.mark.parametrize(
    ("plugin", "parameter"),
    [
        ("queue-scorer", "minRange"),
        ("prefix-cache-scorer", "matchLengthWeight"),
        ("active-request-scorer", "maxBusyScore"),
        ("inflight-load-producer", "outputRatio"),
    ],
)
def test_B09_a_parameter_that_is_no_finite_number_is_refused(
    plugin: str, parameter: str, number: str
) -> None:
    """Protected by `if not _finite(value)` in epp/framework/registry.py; red without it, since
    no comparison holds for what is no number."""
    said = refused(f"plugins:\n- type: {plugin}\n  parameters:\n    {parameter}: {number}\n")
    assert said.startswith("f:6:5 ")
    assert f"{parameter} must be finite" in said


@pytest.mark.parametrize(
    ("plugin", "parameter"),
    [
        ("token-load-scorer", "queueThresholdTokens"),
        ("load-aware-scorer", "threshold"),
        ("no-hit-lru-scorer", "lruSize"),
        ("approx-prefix-cache-producer", "blockSizeTokens"),
        ("approx-prefix-cache-producer", "lruCapacityPerServer"),
        ("max-score-picker", "maxNumOfEndpoints"),
    ],
)
def test_B10_sizes_below_1_are_refused_and_1_works(plugin: str, parameter: str) -> None:
    """Protected by each plugin's own constructor, whose sentence becomes a fault with a place in
    `build` of epp/framework/registry.py; red when a constructor's refusal is let pass."""
    for bad in (0, -1):
        said = refused(f"plugins:\n- type: {plugin}\n  parameters:\n    {parameter}: {bad}\n")
        assert said.startswith("f:6:5 "), said
        assert parameter in said
    good = f"plugins:\n- type: {plugin}\n  parameters:\n    {parameter}: 1\n"
    assert build(resolve((HEAD + good).encode(), "f"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "plugins: [{type: queue-scorer}, {type: queue-scorer}]",
            "f:3:34 'queue-scorer' is the name of an earlier plugin",
        ),
        (
            "plugins: [{type: queue-scorer}]\nschedulingProfiles:\n- name: a\n  plugins:\n"
            "  - pluginRef: queue-scorer\n  - pluginRef: queue-scorer",
            "f:8:5 'queue-scorer' stands in this profile already",
        ),
        (
            "schedulingProfiles: [{name: a}, {name: a}]",
            "f:3:34 'a' names an earlier profile",
        ),
    ],
)
def test_B10_what_stands_twice_is_refused(text: str, says: str) -> None:
    """Protected by the look-ups of earlier names in epp/request/plan/entries.py and resolve.py;
    red without them."""
    assert refused(text) == says


def test_B10_a_profile_without_scorers_is_any_of_those_that_may() -> None:
    """Protected by `_picker` in epp/request/plan/resolve.py; red without a default picker."""
    plan = resolve(f"{HEAD}schedulingProfiles: [{{name: a}}]".encode(), "f")
    profile = build(plan).profiles["a"]
    assert (profile.scorers, profile.picker.name) == ((), "max-score-picker")


@pytest.mark.parametrize(
    "text",
    [
        "plugins: &a [*a]",
        "plugins: &a [{<<: *a}]",
        "metadata: &a {b: *a}",
        "metadata:\n  y0: &y0 [1]\n" + "".join(f"  y{n}: &y{n} {laugh(n)}\n" for n in range(1, 7)),
    ],
    ids=["a list in itself", "a merge of itself", "a mapping in itself", "a billion laughs"],
)
def test_B10_a_document_that_holds_itself_ends(text: str) -> None:
    """Protected by `_MAX_PARTS` and `_MAX_DEPTH` in epp/config/located.py; red (for ever) without
    them."""
    assert refused(text).startswith("f:")


@pytest.mark.parametrize(
    "text",
    [weighing("-1"), "plugins: [{type: token-load-scorer, parameters: {queueThresholdTokens: 0}}]"],
)
def test_B10_the_process_ends_at_once_with_the_place(tmp_path: Path, text: str) -> None:
    """Protected by `raise` in epp/commands/check.py; red when the fault goes no further."""
    file = tmp_path / "c.yaml"
    file.write_text(HEAD + text)
    done = subprocess.run(
        [sys.executable, "-m", "epp.cli", "check", str(file)],
        capture_output=True,
        text=True,
        timeout=scaled(20),
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"epp: {file}:")
    assert "Traceback" not in done.stderr
