"""What producers of a configuration ask of the state path."""

from epp.framework import PRODUCED, EngineNames, registry
from epp.framework.engines import BUILT_IN, VLLM, specs
from epp.request.plan import data, feeds
from epp.request.plan.live import Built, build
from epp.request.plan.resolve import default_plan, resolve

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
SGLANG_LABEL = {"llm-d.ai/engine-type": "sglang"}


def built(*plugins: str) -> Built:
    text = f"{HEAD}plugins: [{', '.join(('{type: queue-scorer}', *plugins))}]"
    return build(resolve(text.encode(), "f"))


def test_by_default_engines_are_asked_for_tokens_and_flags_say_how_often_pages_are_read() -> None:
    plan = build(default_plan())
    assert feeds.exact_tokens(plan)
    assert feeds.page_interval_s(plan) is None
    assert feeds.engine_of(plan)({}) == VLLM
    assert feeds.engine_of(plan)(SGLANG_LABEL) == BUILT_IN["sglang"]


def test_an_estimate_asks_no_engine() -> None:
    assert not feeds.exact_tokens(built("{type: token-producer, parameters: {estimate: {}}}"))


def test_a_data_source_says_how_often_and_where_pages_are_read() -> None:
    plan = built("{type: metrics-data-source, parameters: {interval: 2s, path: /stats}}")
    assert feeds.page_interval_s(plan) == 2.0
    names = feeds.engine_of(plan)(SGLANG_LABEL)
    assert names.page == "/stats"
    assert names.waiting == BUILT_IN["sglang"].waiting


def test_the_extractor_says_which_engines_there_are() -> None:
    plan = built(
        "{type: metrics-data-source}",
        "{type: core-metrics-extractor, parameters: {defaultEngine: mine, engineConfigs: "
        "[{name: mine, queuedRequestsSpec: 'q{state=waiting}'}]}}",
    )
    engine_of = feeds.engine_of(plan)
    assert engine_of({}) == EngineNames(name="mine", waiting=specs("q{state=waiting}"))
    assert engine_of(SGLANG_LABEL) == BUILT_IN["sglang"]


def test_each_kind_of_data_has_a_word_for_where_it_comes_from_by_default() -> None:
    assert data.DEFAULTS.keys() == PRODUCED
    assert all(data.DEFAULTS.values())
    for kind, name in data.ADDED.items():
        found = registry.find(name)
        assert found is not None
        assert kind in found.produces
