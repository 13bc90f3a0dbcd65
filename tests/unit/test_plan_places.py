"""Where in a configuration its faults and notes are said to stand: at the very word."""

import pytest

from epp.request.plan.resolve import default_plan, resolve
from tests.unit.test_plan_rules import plan, refused

USUAL = (
    "plugins: [{type: queue-scorer}, {type: max-score-picker}, {type: single-profile-handler}, "
    "{type: passthrough-parser}]\n"
)


@pytest.mark.parametrize(
    ("rest", "says"),
    [
        (
            "schedulingProfiles: [{plugins: [], name: a}, {plugins: [], name: a}]",
            "f:4:60 'a' names an earlier profile",
        ),
        (
            "schedulingProfiles: [{name: a, plugins: [{weight: 1, pluginRef: nobody}]}]",
            "f:4:54 unknown plugin 'nobody'",
        ),
        (
            "schedulingProfiles: [{name: a, plugins: [{weight: 1, "
            "pluginRef: single-profile-handler}]}]",
            "f:4:54 'single-profile-handler' is a profile handler",
        ),
        (
            "schedulingProfiles: [{name: a, plugins: [{pluginRef: queue-scorer}, "
            "{weight: 1, pluginRef: queue-scorer}]}]",
            "f:4:81 'queue-scorer' stands in this profile already",
        ),
        ("parser: {pluginRef: nobody-at-all}", "f:4:10 unknown parser 'nobody-at-all'"),
        ("featureGates: [flowControl=1]", "f:4:16 'flowControl' is not offered"),
        ("featureGates: [flowControl=t]", "f:4:16 'flowControl' is not offered"),
        (f"featureGates: ['flowControl={'x' * 80}']", f"f:4:16 'flowControl={'x' * 52}': expected"),
    ],
)
def test_a_fault_stands_at_the_very_word(rest: str, says: str) -> None:
    assert refused(USUAL + rest).startswith(says)


def test_several_profiles_without_a_handler_are_told_at_the_profiles() -> None:
    said = refused("plugins: [{type: queue-scorer}]\nschedulingProfiles: [{name: a}, {name: b}]")
    assert said.startswith("f:4:1 several profiles need a profile handler")


def test_a_profile_that_nobody_named_is_found_fault_with_at_the_plugins() -> None:
    said = refused("featureGates: []\nplugins: [{type: random-picker}, {type: max-score-picker}]")
    assert said == "f:4:1 profile 'default' has several pickers: random-picker, max-score-picker"
    assert default_plan().source == "default"


def test_a_note_stands_at_the_very_word() -> None:
    older = "kind: EndpointPickerConfig\napiVersion: inference.networking.x-k8s.io/v1alpha1\n"
    (first, *_) = resolve((older + USUAL).encode(), "f").notes
    assert first.startswith("f:2:1 the older group still works")
    assert plan(f"{USUAL}parser: {{pluginRef: passthrough-parser}}").notes == (
        "f:4:1 `parser` is deprecated: use requestHandler.parsers",
    )


@pytest.mark.parametrize("switch", ["0", "f", "F", "false"])
def test_a_gate_may_be_switched_off_in_each_spelling(switch: str) -> None:
    assert plan(f"{USUAL}featureGates: ['flowControl={switch}']").profiles


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        (
            "{parameters: {}, type: queue-scorer}, {parameters: {}, type: queue-scorer}",
            "'queue-scorer' is the name of an earlier plugin",
        ),
        (
            "{name: a, type: queue-scorer}, {parameters: {}, name: a, type: max-score-picker}",
            "'a' is the name of an earlier plugin",
        ),
        ("{name: a, type: session-affinity-scorer}", "'session-affinity-scorer' is experimental"),
        ("{name: a, type: local-syncer}", "'local-syncer' is not offered here"),
        (
            "{type: openai-parser, parameters: {strict: true}}",
            "'openai-parser' has no parameter 'strict'; known: none",
        ),
    ],
)
def test_a_fault_of_an_entry_stands_at_the_very_word(entries: str, says: str) -> None:
    line = f"plugins: [{entries}]"
    word = "strict" if "strict" in entries else "name" if "'a' is" in says else "type"
    assert refused(line).startswith(f"f:3:{line.rindex(word + ':') + 1} {says}")


def test_notes_of_an_entry_stand_at_the_very_word_and_say_why() -> None:
    line = (
        "plugins: [{name: a, type: topology-extractor}, {name: b, type: by-label, parameters: "
        "{label: x, allowsNoLabel: true}}, {type: latency-scorer, parameters: {ttftWeight: 1, "
        "prefixMatchInfoProducerName: ''}}]"
    )
    column = {word: line.index(word) + 1 for word in ("type: topology", "type: by", "prefixM")}
    assert plan(line).notes == (
        f"f:3:{column['type: topology']} 'a' does nothing here: labels of endpoints are read where "
        "they are needed",
        f"f:3:{column['type: by']} 'by-label' is deprecated: use label-selector-filter",
        f"f:3:{column['prefixM']} 'prefixMatchInfoProducerName' changes nothing here: an endpoint "
        "has one match, the best that is known",
    )
