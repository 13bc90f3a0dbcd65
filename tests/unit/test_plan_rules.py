"""What a configuration may say: each rule with the place of what breaks it."""

from dataclasses import dataclass, make_dataclass

import pytest

from epp.errors import ConfigError
from epp.framework.registry import Kind
from epp.request.plan import elsewhere
from epp.request.plan.entries import Options
from epp.request.plan.plan import Plan
from epp.request.plan.resolve import resolve
from tests.fakes.plugins import Install, install

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"


def plan(text: str, *, alpha: bool = False) -> Plan:
    return resolve((HEAD + text).encode(), "f", Options(allow_experimental=alpha))


def refused(text: str, *, alpha: bool = False) -> str:
    with pytest.raises(ConfigError) as caught:
        plan(text, alpha=alpha)
    return str(caught.value)


def snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


@dataclass(frozen=True, kw_only=True)
class Feeder:
    pace: float = 1.0


class Matches(Feeder):
    produces = frozenset({"prefix-match"})
    consumes = frozenset({"tokens"})


class Tokens(Feeder):
    produces = frozenset({"tokens"})


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Install:
    """With a producer of matches and one of tokens."""
    add = install(monkeypatch)
    add(Kind.PRODUCER, "matches", Matches)
    add(Kind.PRODUCER, "words", Tokens)
    return add


# The document


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "f:1:1 is empty"),
        ("[]", "f:1:1 'the file': must be a mapping"),
        ("kind: EndpointPickerConfig", "f:1:1 'apiVersion' is missing"),
        (
            "apiVersion: v1\nkind: EndpointPickerConfig",
            "f:1:1 'apiVersion': input should be 'llm-d.ai/v1alpha1' or "
            "'inference.networking.x-k8s.io/v1alpha1', got 'v1'",
        ),
        ("apiVersion: llm-d.ai/v1alpha1\nkind: Pod", "f:2:1 'kind': input should be"),
        (HEAD + "plugin: []", "f:3:1 unknown field 'plugin'; did you mean 'plugins'?"),
        (HEAD + "plugins: {}", "f:3:1 'plugins': input should be a valid list"),
        (HEAD + "plugins:\n- name: a", "f:4:3 'type' is missing"),
        (
            HEAD + "plugins:\n- type: a\n  typo: 1",
            "f:5:3 unknown field 'typo'; did you mean 'type'?",
        ),
        (HEAD + "plugins:\n- type: 7", "f:4:3 'type': input should be a valid string, got 7"),
        (HEAD + "kind: EndpointPickerConfig", "f:3:1 'kind' stands here a second time"),
        (HEAD + "plugins: [}", "f:3:11 is neither YAML nor JSON"),
        (HEAD + "plugins: !!set {a}", "f:3:1 'plugins': input should be a valid list"),
        (
            HEAD + "plugins: [{type: !!python/name:os.system ''}]",
            "f:3:12 cannot be read as a value",
        ),
    ],
)
def test_a_document_of_another_shape_is_refused_at_its_place(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(text.encode(), "f")
    assert says in str(caught.value)


def test_all_faults_of_shape_are_told_at_once() -> None:
    said = refused("plugin: []\nplugins: [{name: a}, {}]")
    assert said.splitlines() == [
        "f:4:11 'type' is missing",
        "f:4:22 'type' is missing",
        "f:3:1 unknown field 'plugin'; did you mean 'plugins'?",
    ]


def test_nulls_and_empty_names_are_absent_as_charts_write_them() -> None:
    found = plan(
        "featureGates:\ndataLayer:\nplugins:\n"
        "- type: queue-scorer\n  name: ''\n  parameters:\n"
        "- type: token-load-scorer\n  name:\n  parameters: {queueThresholdTokens: null}\n"
        "schedulingProfiles:\n"
    )
    assert [use.reference for use, _ in found.profiles["default"].scorers] == [
        "queue-scorer",
        "token-load-scorer",
    ]


def test_json_and_merged_mappings_are_yaml_too() -> None:
    text = '{"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig"}'
    assert list(resolve(text.encode(), "f").profiles) == ["default"]
    found = plan(
        "metadata: {common: &common {minRange: 4, maxRange: 9}}\n"
        "plugins:\n- type: queue-scorer\n  parameters: {<<: *common, maxRange: 5}\n"
    )
    ((use, _),) = found.profiles["default"].scorers
    assert use.parameters == {"maxRange": 5, "minRange": 4}


def test_the_older_group_works_and_is_told() -> None:
    text = "apiVersion: inference.networking.x-k8s.io/v1alpha1\nkind: EndpointPickerConfig\n"
    assert resolve(text.encode(), "f").notes == (
        "f:1:1 the older group still works; use llm-d.ai/v1alpha1",
    )


# Plugins


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "- type: queue-scorrer",
            "f:4:3 unknown plugin type 'queue-scorrer'; did you mean 'queue-scorer'?",
        ),
        ("- type: zzz", "f:4:3 unknown plugin type 'zzz'; known: "),
        (
            "- type: queue-scorer\n- type: queue-scorer",
            "f:5:3 'queue-scorer' is the name of an earlier plugin",
        ),
        (
            "- type: queue-scorer\n- type: token-load-scorer\n  name: queue-scorer",
            "f:6:3 'queue-scorer' is the name of an earlier plugin",
        ),
        (
            "- type: queue-scorer\n  parameters:\n    minRnge: 3",
            "f:6:5 scorer 'queue-scorer' has no parameter 'minRnge'; did you mean 'minRange'?",
        ),
        (
            "- type: queue-scorer\n  parameters:\n    minRange: much",
            "f:6:5 scorer 'queue-scorer': minRange: input should be a valid number",
        ),
        (
            "- type: token-load-scorer\n  parameters:\n    queueThresholdTokens: 0",
            "f:6:5 scorer 'token-load-scorer': queueThresholdTokens must be above 0, got 0",
        ),
        (
            "- type: queue-scorer\n  parameters: 3",
            "f:5:3 'parameters': must be a mapping",
        ),
        (
            "- type: openai-parser\n  parameters: {a: 1}",
            "f:5:16 'openai-parser' has no parameter 'a'",
        ),
        (
            "- type: disagg-profile-handler\n  parameters:\n    deciders:\n      prefil: x",
            "f:7:7 profile handler 'disagg-profile-handler': deciders.prefil: "
            "there is no such parameter, got 'x'",
        ),
    ],
)
def test_a_plugin_that_cannot_be_is_refused_at_its_place(text: str, says: str) -> None:
    assert says in refused(f"plugins:\n{text}")


@pytest.mark.parametrize("name", sorted(elsewhere.REFUSED))
def test_what_is_not_offered_says_what_to_use(name: str) -> None:
    said = refused(f"plugins:\n- type: {name}")
    assert said == f"f:4:3 {name!r} is not offered here: {elsewhere.REFUSED[name]}"


@pytest.mark.parametrize("name", sorted(elsewhere.NOTHING_TO_DO))
def test_what_is_done_in_any_case_may_stand_and_is_told(name: str) -> None:
    found = plan(f"plugins:\n- type: {name}")
    assert found.notes == (f"f:4:3 {name!r} does nothing here: {elsewhere.NOTHING_TO_DO[name]}",)
    profile = f"schedulingProfiles: [{{name: a, plugins: [{{pluginRef: {name}}}]}}]"
    assert "cannot stand here" in refused(f"plugins:\n- type: {name}\n{profile}")


def test_an_alpha_plugin_needs_the_flag(plugins: Install) -> None:
    class Odd(Feeder):
        stability = "alpha"

    plugins(Kind.PRODUCER, "odd", Odd)
    said = refused("plugins:\n- type: odd")
    assert said == "f:4:3 'odd' is experimental: start with --allow-experimental-plugins"
    assert plan("plugins:\n- type: odd", alpha=True)


def test_an_older_name_works_and_is_told(plugins: Install) -> None:
    plugins(Kind.PRODUCER, "tokenizer", Tokens)
    (note,) = plan("plugins:\n- type: tokenizer").notes
    assert note == "f:4:3 'tokenizer' is deprecated: use token-producer"


def test_a_plugin_that_cannot_be_loaded_or_built_is_no_traceback(plugins: Install) -> None:
    def breaks() -> None:
        raise ZeroDivisionError("by nothing")

    plugins(Kind.SCORER, "missing", ImportError("no such module"))
    plugins(Kind.SCORER, "breaks", breaks)
    said = refused("plugins:\n- type: missing")
    assert said == "f:4:3 plugin 'missing' cannot be loaded: no such module"
    assert refused("plugins:\n- type: breaks") == "f:4:3 scorer 'breaks': by nothing"


def test_an_installed_plugin_of_a_name_that_we_refuse_is_used(plugins: Install) -> None:
    class Latency:
        def score(self, *_: object) -> list[float]:
            return []

    plugins(Kind.SCORER, "latency-scorer", Latency)
    assert len(plan("plugins:\n- type: latency-scorer").profiles["default"].scorers) == 1


# Profiles

PLUGINS = """\
plugins:
- type: queue-scorer
- type: decode-filter
- type: max-score-picker
- type: single-profile-handler
"""


def in_profile(*lines: str, before: str = PLUGINS) -> str:
    listed = "".join(f"  - {line}\n" for line in lines)
    return f"{before}schedulingProfiles:\n- name: a\n  plugins:\n{listed}"


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["pluginRef: queue"], "f:11:5 unknown plugin 'queue'; did you mean 'queue-scorer'?"),
        (
            ["pluginRef: token-load-scorer"],
            "f:11:5 `plugins` has no entry 'token-load-scorer': add `- type: token-load-scorer`",
        ),
        (["weight: 1"], "f:11:5 'pluginRef' is missing"),
        (
            ["pluginRef: single-profile-handler"],
            "f:11:5 'single-profile-handler' is a profile handler; profiles hold filters",
        ),
        (
            ["pluginRef: queue-scorer", "pluginRef: queue-scorer"],
            "f:12:5 'queue-scorer' stands in this profile already",
        ),
    ],
)
def test_a_profile_that_refers_to_what_is_not_there_is_refused(lines: list[str], says: str) -> None:
    assert says in refused(in_profile(*lines))


def test_weights_and_order_are_as_written() -> None:
    before = PLUGINS.replace("- type: decode", "- type: token-load-scorer\n- type: decode")
    found = plan(
        in_profile(
            "{pluginRef: token-load-scorer, weight: 1e1}",
            "pluginRef: decode-filter",
            "{pluginRef: queue-scorer, weight: '0.5'}",
            "pluginRef: max-score-picker",
            before=before,
        )
    )
    profile = found.profiles["a"]
    weights = [(use.reference, weight) for use, weight in profile.scorers]
    assert weights == [("token-load-scorer", 10.0), ("queue-scorer", 0.5)]
    assert [use.reference for use in profile.filters] == ["decode-filter"]
    assert (profile.picker.reference, profile.picker.added) == ("max-score-picker", False)
    assert found.notes == ()


def test_a_weight_counts_one_where_none_is_given_and_nothing_on_a_filter() -> None:
    found = plan(in_profile("pluginRef: queue-scorer", "{pluginRef: decode-filter, weight: 3}"))
    assert [weight for _, weight in found.profiles["a"].scorers] == [1.0]
    assert found.notes == (
        "f:12:32 the weight does nothing: 'decode-filter' is a filter, not a scorer",
    )


def test_a_profile_without_a_picker_gets_the_only_one_or_the_default() -> None:
    named = "plugins: [{type: max-score-picker, name: mine}]\nschedulingProfiles: [{name: a}]"
    assert plan(named).profiles["a"].picker.reference == "mine"
    assert plan("schedulingProfiles: [{name: a}]").profiles["a"].picker.added


def test_of_several_pickers_a_profile_names_its_own() -> None:
    two = "plugins: [{type: max-score-picker}, {type: max-score-picker, name: other}]\n"
    said = refused(f"{two}schedulingProfiles: [{{name: a}}]")
    assert said == ("f:4:22 profile 'a' has no picker: name one of max-score-picker, other")
    both = "plugins: [{pluginRef: max-score-picker}, {pluginRef: other}]"
    said = refused(f"{two}schedulingProfiles: [{{name: a, {both}}}]")
    assert said == "f:4:22 profile 'a' has several pickers: max-score-picker, other"


def test_a_default_that_is_needed_may_not_be_taken_by_another_kind() -> None:
    said = refused("plugins: [{type: queue-scorer, name: max-score-picker}]")
    assert said == (
        "f:3:11 'max-score-picker' is a scorer here, and the default of that name is needed"
    )


def test_no_profiles_are_one_of_everything_in_order() -> None:
    found = plan(
        "plugins: [{type: token-load-scorer}, {type: decode-filter}, {type: queue-scorer}]"
    )
    (profile,) = found.profiles.values()
    assert profile.name == "default"
    assert [use.reference for use, _ in profile.scorers] == ["token-load-scorer", "queue-scorer"]
    assert [use.reference for use in profile.filters] == ["decode-filter"]
    assert (found.handler.type.name, found.handler.added) == ("single-profile-handler", True)


def test_a_scorer_that_keeps_as_well_filters_at_its_place(plugins: Install) -> None:
    class Both:
        def score(self, *_: object) -> list[float]:
            return []

        def keep(self, *_: object) -> list[bool]:
            return []

    plugins(Kind.SCORER, "both", Both)
    profile = plan("plugins: [{type: both}, {type: decode-filter}]").profiles["default"]
    assert [use.reference for use in profile.filters] == ["both", "decode-filter"]
    assert [use.reference for use, _ in profile.scorers] == ["both"]


def test_a_profile_stands_once() -> None:
    said = refused("schedulingProfiles:\n- name: a\n- name: a")
    assert said == "f:5:3 'a' names an earlier profile"


# The handler


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "schedulingProfiles: [{name: a}, {name: b}]",
            "f:3:1 several profiles need a profile handler, such as disagg-profile-handler",
        ),
        (
            "plugins: [{type: single-profile-handler}]\nschedulingProfiles: [{name: a}, {name: b}]",
            "f:3:11 profile handler 'single-profile-handler': ",
        ),
        (
            "plugins:\n- type: single-profile-handler\n- type: disagg-profile-handler",
            "f:5:3 one profile handler is enough, here are: single-profile-handler, disagg-",
        ),
        (
            "plugins:\n- type: disagg-profile-handler\n  parameters: {deciders: {prefill: d}}\n"
            "schedulingProfiles: [{name: decode}, {name: prefill}]",
            "f:4:3 profile handler 'disagg-profile-handler': there is no decider 'd'",
        ),
    ],
)
def test_exactly_one_handler_that_fits_the_profiles(text: str, says: str) -> None:
    assert says in refused(text)


def test_what_nothing_refers_to_is_told() -> None:
    found = plan(
        "plugins:\n- type: queue-scorer\n- type: openai-parser\n- type: prefix-based-pd-decider\n"
        "schedulingProfiles: [{name: a}]"
    )
    assert found.notes == (
        "f:4:3 nothing refers to 'queue-scorer': it is not run",
        "f:6:3 nothing refers to 'prefix-based-pd-decider': it is not run",
        "f:5:3 nothing refers to 'openai-parser': it is not run",
    )


# Data


def test_the_plan_says_who_feeds_whom(plugins: Install) -> None:
    found = plan("plugins: [{type: matches}, {type: words}, {type: queue-scorer}]")
    fed = {data: [use.reference for use in uses] for data, uses in found.producers.items()}
    assert fed == {"prefix-match": ["matches"], "tokens": ["words"]}
    assert found.consumers["tokens"] == ("matches",)
    assert found.consumers["engine-metrics"] == ("queue-scorer",)
    assert found.notes == ()


@pytest.mark.parametrize("key", ["prefixMatchInfoProducerName", "producer", "x_producer_name"])
def test_a_parameter_that_names_a_producer_names_one_that_is_there(
    plugins: Install, key: str
) -> None:
    made = make_dataclass("Reader", [(snake(key), str, "")], namespace={"score": lambda *_: []})
    plugins(Kind.SCORER, "reader", made)

    def reader(value: str) -> str:
        return f"plugins:\n- type: reader\n  parameters:\n    {key}: {value}\n- type: queue-scorer"

    assert plan(reader("matches"))  # an installed producer, by its type
    assert plan(reader("mine") + "\n- {type: matches, name: mine}")
    assert refused(reader("matchs")) == "f:6:5 unknown plugin 'matchs'; known: reader, queue-scorer"
    said = refused(reader("queue-scorer"))
    assert said == "f:6:5 'queue-scorer' is a scorer; it feeds no data"
    said = refused(reader("burst-prefix-cache-producer"))
    assert said.startswith("f:6:5 'burst-prefix-cache-producer' is not offered here: ")


def test_producers_may_not_wait_for_each_other(plugins: Install) -> None:
    class Circle(Feeder):
        produces = frozenset({"tokens"})
        consumes = frozenset({"prefix-match"})

    plugins(Kind.PRODUCER, "circle", Circle)
    said = refused("plugins:\n- type: matches\n- type: circle")
    assert said == "f:4:3 producers wait for each other: matches → circle → matches"


def test_one_producer_of_a_type_is_enough(plugins: Install) -> None:
    said = refused("plugins:\n- type: words\n- {type: words, name: again}")
    assert said == "f:5:3 'again' is a second words, 'words' feeds the same"


@pytest.mark.parametrize(
    ("layer", "says"),
    [
        (
            "{injectDefaults: false}",
            "f:4:13 nobody feeds the engine-metrics that 'queue-scorer' reads: add ",
        ),
        (
            "{sources: [{pluginRef: queue-scorer}]}",
            "f:4:24 'queue-scorer' is a scorer; it feeds no data",
        ),
        (
            "{sources: [{pluginRef: words, extractors: [{pluginRef: word}]}]}",
            "f:4:56 unknown plugin 'word'; did you mean 'words'?",
        ),
        ("{discovery: {pluginRef: x}}", "f:4:25 unknown plugin 'x'"),
        ("{peerDiscovery: {pluginRef: x}}", "f:4:13 'peerDiscovery' is not offered here: repl"),
        ("{crossReplicaSyncInterval: 1s}", "f:4:13 'crossReplicaSyncInterval' is not offered"),
        ("{crossReplicaSyncInterval: soon}", "f:4:13 'crossReplicaSyncInterval': expected a dur"),
    ],
)
def test_a_data_layer_that_cannot_be_is_refused_at_its_place(
    plugins: Install, layer: str, says: str
) -> None:
    said = refused(f"plugins: [{{type: queue-scorer}}, {{type: words}}]\ndataLayer: {layer}")
    assert says in said


def test_sources_may_be_named_with_their_readers(plugins: Install) -> None:
    assert plan(
        "plugins: [{type: words}, {type: matches}, {type: endpoint-notification-source}]\n"
        "dataLayer:\n  sources:\n  - {pluginRef: words}\n"
        "  - pluginRef: endpoint-notification-source\n    extractors: [{pluginRef: matches}]\n"
    )


# Parsers, gates, and what comes later


def test_parsers_are_chosen_by_entry_or_by_type() -> None:
    chosen = "requestHandler: {parsers: [{pluginRef: mine}, {pluginRef: anthropic-parser}]}"
    found = plan(f"plugins: [{{type: openai-parser, name: mine}}]\n{chosen}")
    assert found.parsers == ("openai-parser", "anthropic-parser")
    assert plan("plugins: [{type: queue-scorer}]").parsers is None
    older = plan("parser: {pluginRef: passthrough-parser}")
    assert older.parsers == ("passthrough-parser",)
    assert older.notes == ("f:3:1 `parser` is deprecated: use requestHandler.parsers",)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("openai", "f:4:29 unknown parser 'openai'; did you mean 'openai-parser'?"),
        ("fcfs-ordering-policy", "f:4:29 'fcfs-ordering-policy' is not offered here: "),
        ("queue-scorer", "f:4:29 'queue-scorer' is a scorer, not a parser"),
    ],
)
def test_a_parser_that_is_none_is_refused_at_its_place(name: str, says: str) -> None:
    text = (
        f"plugins: [{{type: queue-scorer}}]\nrequestHandler: {{parsers: [{{pluginRef: {name}}}]}}"
    )
    assert says in refused(text)


@pytest.mark.parametrize(
    ("gate", "says"),
    [
        ("flowControl", "f:3:16 'flowControl' is not offered here: flow control comes"),
        ("flowControl=TRUE", "f:3:16 'flowControl' is not offered here: flow control comes"),
        ("flowControll", "f:3:16 unknown feature gate 'flowControll'; did you mean 'flowControl'?"),
        ("flowControl=no", "f:3:16 'flowControl=no': expected true or false after the `=`"),
        ("flowControl=", "f:3:16 'flowControl=': expected true or false after the `=`"),
    ],
)
def test_a_gate_of_what_is_not_offered_may_only_be_off(gate: str, says: str) -> None:
    assert says in refused(f"featureGates: ['{gate}']")
    assert plan("featureGates: [flowControl=false, haPopulateNonLeaderDatastore=false]")


def test_of_flow_control_the_detector_alone_counts_while_its_gate_is_off() -> None:
    found = plan(
        "flowControl: {maxBytes: 1G, enableEviction: null, priorityBands: [{priority: 1}],\n"
        "  saturationDetector: {pluginRef: concurrency-detector}}"
    )
    assert found.notes == (
        "f:3:15 'maxBytes' does nothing while the feature gate flowControl is off",
        "f:3:51 'priorityBands' does nothing while the feature gate flowControl is off",
    )
    assert (found.detector.reference, found.detector.added) == ("concurrency-detector", True)


@pytest.mark.parametrize(
    ("text", "detector", "queue"),
    [
        ("", "utilization-detector", None),
        ("plugins: [{type: utilization-detector, parameters: {queueDepthThreshold: 7}}]", "", 7),
        (
            "plugins: [{type: utilization-detector, name: mine, "
            "parameters: {queueDepthThreshold: 9}}]\n"
            "flowControl: {saturationDetector: {pluginRef: mine}}",
            "mine",
            9,
        ),
        (
            "plugins: [{type: utilization-detector, name: mine}]\n"
            "saturationDetector: {pluginRef: mine}",
            "mine",
            None,
        ),
        (
            "plugins: [{type: utilization-detector, name: mine}]\n"
            "flowControl: {saturationDetector: {pluginRef: utilization-detector}}\n"
            "saturationDetector: {pluginRef: mine}",
            "utilization-detector",
            None,
        ),
    ],
)
def test_the_detector_is_the_named_one_else_the_usual(
    text: str, detector: str, queue: int | None
) -> None:
    found = plan(text).detector
    assert found.reference == detector or not detector
    assert found.parameters.get("queueDepthThreshold") == queue


def test_the_older_place_of_the_detector_is_told() -> None:
    text = "saturationDetector: {pluginRef: utilization-detector}"
    what = "f:3:1 `saturationDetector` is deprecated: use flowControl.saturationDetector"
    assert plan(text).notes == (what,)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("saturationDetector: {pluginRef: x}", "f:3:22 unknown plugin 'x'"),
        ("flowControl: {saturationDetector: {pluginRef: x}}", "f:3:36 unknown plugin 'x'"),
        (
            "plugins: [{type: queue-scorer}]\nsaturationDetector: {pluginRef: queue-scorer}",
            "f:4:22 'queue-scorer' is a scorer, not a saturation detector",
        ),
    ],
)
def test_what_is_no_detector_is_refused_at_its_place(text: str, says: str) -> None:
    assert says in refused(text)


def test_a_detector_in_a_profile_filters_there_and_admitters_need_no_reference() -> None:
    found = plan(
        "plugins: [{type: concurrency-detector}, {type: probabilistic-admitter},\n"
        "  {type: latency-slo-admitter}]\n"
        "schedulingProfiles: [{name: a, plugins: [{pluginRef: concurrency-detector}]}]"
    )
    assert [use.reference for use in found.profiles["a"].filters] == ["concurrency-detector"]
    assert found.detector.reference == "utilization-detector"
    admitters = [use.reference for use in found.admitters]
    assert admitters == ["probabilistic-admitter", "latency-slo-admitter"]
    assert found.notes == ()
    alone = plan("plugins: [{type: utilization-detector}]")
    assert [use.reference for use in alone.profiles["default"].filters] == ["utilization-detector"]
    text = (
        "plugins: [{type: probabilistic-admitter}]\n"
        "schedulingProfiles: [{name: a, plugins: [{pluginRef: probabilistic-admitter}]}]"
    )
    assert "is a request admitter; profiles hold filters" in refused(text)
