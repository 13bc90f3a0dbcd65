"""What endpoints serve: their pages of models, and who stays by them."""

import json

import pytest

from epp.errors import ConfigError, PluginError
from epp.framework import (
    Candidates,
    ModelsReader,
    ModelsSource,
    Request,
    Watcher,
    registry,
)
from epp.plugins.filters.served_model import ServedModel
from epp.request.plan import feeds, report
from epp.request.plan.live import Built, build, unfollowed
from epp.request.plan.resolve import resolve
from epp.state.served_models import MAX_MODELS, MAX_NAME, models_on
from tests.fakes.endpoints import endpoint

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"


def page(*names: object) -> bytes:
    return json.dumps({"object": "list", "data": [{"id": name} for name in names]}).encode()


def test_a_page_names_models_and_adapters() -> None:
    vllm = b'{"object":"list","data":[{"id":"llama","parent":null},{"id":"ad","parent":"llama"}]}'
    assert models_on(vllm) == {"llama", "ad"}
    assert models_on(page()) == set()


@pytest.mark.parametrize(
    "wrong",
    [b"", b"[]", b"{}", b'{"data": 3}', b'{"data": [{}]}', page(7), b"\xff", b"[" * 100_000],
)
def test_anything_else_is_no_page(wrong: bytes) -> None:
    with pytest.raises(ValueError, match="no page of models"):
        models_on(wrong)


def test_names_are_bounded_in_length_and_number() -> None:
    assert models_on(page("", "x" * MAX_NAME, "x" * (MAX_NAME + 1))) == {"x" * MAX_NAME}
    many = models_on(page(*map(str, range(MAX_MODELS + 5))))
    assert len(many) == MAX_MODELS
    assert str(MAX_MODELS) not in many


def knowing(**served: set[str]) -> ServedModel:
    plugin = ServedModel()
    for name, models in served.items():
        plugin.serves(endpoint(name).id, models)
    return plugin


def kept(plugin: ServedModel, model: str, names: str = "abc") -> str:
    asked = Request(id="r", api="chat", path="/", model="client's word", target_model=model)
    pool = [endpoint(name) for name in names]
    mask = plugin.keep(asked, Candidates.of(pool))
    return "".join(one.id.name for one, stays in zip(pool, mask, strict=True) if stays)


def test_those_stay_that_are_known_to_serve_the_engines_name_of_the_model() -> None:
    plugin = knowing(a={"llama", "ad"}, b={"llama"})
    assert kept(plugin, "ad") == "a"
    assert kept(plugin, "llama") == "ab", "the third has not said anything"


def test_all_stay_where_nobody_is_known_to_serve_it() -> None:
    plugin = knowing(a={"llama"}, b={"llama"})
    assert kept(plugin, "other") == "abc"
    assert kept(plugin, "") == "abc"
    assert kept(plugin, "llama", "cd") == "cd", "those who do are none of the candidates"
    assert kept(ServedModel(), "llama") == "abc"


def test_the_last_word_counts_and_who_left_is_forgotten() -> None:
    plugin = knowing(a={"one", "two"}, b={"two"})
    plugin.serves(endpoint("a").id, {"one", "three"})
    assert (kept(plugin, "two"), kept(plugin, "three"), kept(plugin, "one")) == ("b", "a", "a")
    plugin.removed([endpoint("a").id, endpoint("nobody").id])
    assert kept(plugin, "one") == "abc"
    plugin.removed([endpoint("b").id])
    assert (plugin._models, plugin._servers) == ({}, {})


def test_it_is_told_models_and_who_leaves() -> None:
    assert isinstance(ServedModel(), ModelsReader)
    assert isinstance(ServedModel(), Watcher)


# The configuration


def built(*plugins: str) -> Built:
    text = f"{HEAD}plugins: [{', '.join(('{type: queue-scorer}', *plugins))}]"
    return build(resolve(text.encode(), "f"))


def test_pages_are_read_only_where_somebody_wants_to_know() -> None:
    assert feeds.models_source(built("{type: models-data-source}")) is None
    assert feeds.models_source(built()) is None


def test_the_source_is_put_in_where_the_filter_stands_alone() -> None:
    source = feeds.models_source(built("{type: served-model-filter}"))
    assert source is not None
    assert (source.models_path, source.models_interval_s) == ("/v1/models", 10.0)


def test_a_source_says_where_and_how_often_pages_are_read() -> None:
    given = "{type: models-data-source, parameters: {path: /models, interval: 30s}}"
    plan = built("{type: served-model-filter, name: mine}", given)
    source = feeds.models_source(plan)
    assert source is not None
    assert (source.models_path, source.models_interval_s) == ("/models", 30.0)
    assert [one.name for one in feeds.models_readers(plan)] == ["mine"]
    other = built("{type: served-model-filter, name: mine}", "{type: models-data-source}")
    assert unfollowed(plan, other) == (), "the next round goes by the new one"


def test_the_references_source_and_extractor_load_and_say_what_they_are_good_for() -> None:
    plan = resolve(
        f"{HEAD}plugins: [{{type: queue-scorer}}, {{type: models-data-source}}, "
        "{type: models-data-extractor}]\ndataLayer: {sources: [{pluginRef: models-data-source, "
        "extractors: [{pluginRef: models-data-extractor}]}]}".encode(),
        "f",
    )
    assert plan.notes == (
        "f:3:62 'models-data-extractor' does nothing here: the names on pages of models are read "
        "by models-data-source",
    )
    (line,) = [line for line in report.text(plan).splitlines() if "served-models" in line]
    assert line == "  served-models: models-data-source -> nobody"


@pytest.mark.parametrize(
    "parameters",
    [{"interval": "0.5s"}, {"interval": "11m"}, {"path": "models"}, {"path": "//else.where/x"}],
)
def test_a_source_that_cannot_be_is_refused_by_its_name(parameters: dict[str, str]) -> None:
    found = registry.find("models-data-source")
    assert found is not None
    assert isinstance(found.build({}), ModelsSource)
    (name,) = parameters
    with pytest.raises(PluginError, match=f"{name} must"):
        found.build(parameters)
    for given in ({"scheme": "https"}, {"caCertPath": "/ca"}):
        with pytest.raises(PluginError):
            found.build(given)


def test_the_extractor_is_no_plugin_of_a_profile() -> None:
    text = (
        f"{HEAD}plugins: [{{type: models-data-extractor}}]\n"
        "schedulingProfiles: [{name: a, plugins: [{pluginRef: models-data-extractor}]}]"
    )
    with pytest.raises(ConfigError, match="a plugin without effect"):
        resolve(text.encode(), "f")
