"""Settings of what feeds data: what they come to, and what is refused or without effect."""

from typing import Any

import pytest

from epp.errors import PluginError
from epp.framework import MetricsReader, MetricsSource, SessionReader, TokenSource, registry
from epp.framework.engines import BUILT_IN, EngineNames, specs
from epp.request.plan.resolve import resolve


def producer(kind: str, **parameters: Any) -> Any:
    found = registry.find(kind)
    assert found is not None
    assert found.produces
    return found.build(parameters)


def refused(kind: str, **parameters: Any) -> str:
    with pytest.raises(PluginError) as refusal:
        producer(kind, **parameters)
    return refusal.value.what


@pytest.mark.parametrize("kind", ["token-producer", "tokenizer"])
def test_engines_are_asked_for_tokens_unless_an_estimate_is_wanted(kind: str) -> None:
    assert isinstance(producer(kind), TokenSource)
    assert producer(kind).exact
    assert producer(kind, modelName="m", vllm={"url": "http://render:8000", "timeout": "2s"}).exact
    assert not producer(kind, estimate={}).exact
    assert not producer(kind, estimate={"image": {"mode": "static"}}).exact
    assert "estimate stands beside" in refused(kind, estimate={}, modelName="m")
    assert "estimate stands beside" in refused(kind, estimate={}, vllm={})
    assert "udsTokenizerConfig" in refused(kind, udsTokenizerConfig={"socketFile": "/x"})
    assert "vllm.uri" in refused(kind, vllm={"uri": "http://render:8000"})


@pytest.mark.parametrize(
    ("parameters", "headers", "session"),
    [
        ({"headerName": "X-Session-ID"}, {"x-session-id": " s1 "}, "s1"),
        ({"headerName": "X-Session-ID"}, {}, ""),
        ({"cookieName": "sid"}, {"cookie": "a=1; sid=s2; b=3"}, "s2"),
        ({"cookieName": "sid"}, {"cookie": 'xsid=no; sid="s=3"'}, "s=3"),
        ({"cookieName": "sid"}, {"cookie": "sid"}, ""),
        ({"cookieName": "sid"}, {"cookie": ";;="}, ""),
        ({"cookieName": "sid"}, {}, ""),
    ],
)
def test_a_session_is_named_by_a_header_or_a_cookie(
    parameters: dict[str, str], headers: dict[str, str], session: str
) -> None:
    reader = producer("session-id-producer", **parameters)
    assert isinstance(reader, SessionReader)
    assert reader.session(headers) == session


@pytest.mark.parametrize("parameters", [{}, {"headerName": "a", "cookieName": "b"}])
def test_a_session_has_exactly_one_source(parameters: dict[str, str]) -> None:
    assert "exactly one" in refused("session-id-producer", **parameters)


def test_pages_are_read_as_often_as_asked_for_and_not_more_than_20_times_a_second() -> None:
    assert isinstance(producer("metrics-data-source"), MetricsSource)
    assert producer("metrics-data-source").interval_s is None
    assert producer("metrics-data-source", interval="1s").interval_s == 1.0
    assert producer("metrics-data-source", interval="10ms").interval_s == 0.05
    for interval in ("0s", -1, "61s"):
        assert "interval must" in refused("metrics-data-source", interval=interval)
    assert "expected a duration" in refused("metrics-data-source", interval="soon")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("scheme", "https", "scheme"),
        ("path", "metrics", "path must be the path of a page"),
        ("path", "//elsewhere/metrics", "path must be the path of a page"),
        ("port", 9100, "no parameter 'port'"),
        ("caCertPath", "/ca", "read without TLS"),
        ("clientCertPath", "/cert", "read without TLS"),
        ("clientKeyPath", "/key", "read without TLS"),
    ],
)
def test_pages_that_are_not_read_are_refused(name: str, value: object, said: str) -> None:
    assert said in refused("metrics-data-source", **{name: value})


@pytest.mark.parametrize(
    "spec",
    ["my_queue", "vllm:waiting", "my_queue{state=waiting}", 'my_queue{ state = "waiting", a=b }'],
)
def test_a_metric_is_named_with_or_without_labels(spec: str) -> None:
    engine = {"name": "mine", "queuedRequestsSpec": spec}
    found = producer("core-metrics-extractor", engineConfigs=[engine], defaultEngine="mine")
    assert isinstance(found, MetricsReader)
    assert found.engine({}).waiting == specs(spec)
    assert not found.engine({}).running


@pytest.mark.parametrize(
    ("engines", "said"),
    [
        ([{"name": "a", "kvUsageSpec": "1abc"}], "a spec is a family"),
        ([{"name": "a", "kvUsageSpec": "abc{x"}], "a spec is a family"),
        ([{"name": "a", "kvUsageSpec": "abc{x}"}], "a spec is a family"),
        ([{"name": ""}], "name must name an engine"),
        ([{"name": "a"}, {"name": "a"}], "engineConfigs has an engine twice"),
        ([{"name": "a", "customMetrics": [{}]}], "customMetrics are not kept"),
        ([{"name": "a", "queueSpec": "x"}], "no such parameter"),
    ],
)
def test_an_engine_that_cannot_be_read_is_refused(engines: list[Any], said: str) -> None:
    assert said in refused("core-metrics-extractor", engineConfigs=engines)


def test_an_engine_of_a_built_in_name_takes_its_place() -> None:
    engine = {"name": "sglang", "cacheInfoSpec": "pages", "cacheBlockSizeLabelName": ""}
    found = producer("core-metrics-extractor", engineConfigs=[engine])
    names = found.engine({"llm-d.ai/engine-type": "sglang"})
    assert names == EngineNames(name="sglang", cache_info=specs("pages"))
    assert found.engine({"llm-d.ai/engine-type": "triton"}) == BUILT_IN["triton"]


@pytest.mark.parametrize(
    ("labels", "engine"),
    [
        ({}, "vllm"),
        ({"llm-d.ai/engine-type": "sglang"}, "sglang"),
        ({"inference.networking.k8s.io/engine-type": "sglang"}, "sglang"),
        (
            {"llm-d.ai/engine-type": "", "inference.networking.k8s.io/engine-type": "triton"},
            "triton",
        ),
        (
            {
                "llm-d.ai/engine-type": "trtllm-serve",
                "inference.networking.k8s.io/engine-type": "triton",
            },
            "trtllm-serve",
        ),
        ({"llm-d.ai/engine-type": "nobody-knows"}, "vllm"),
    ],
)
def test_an_endpoint_names_its_engine_by_a_label(labels: dict[str, str], engine: str) -> None:
    assert producer("core-metrics-extractor").engine(labels).name == engine


def test_the_label_of_the_engine_and_the_engine_of_others_can_be_chosen() -> None:
    found = producer("core-metrics-extractor", engineLabelKey="engine", defaultEngine="sglang")
    assert found.engine({"engine": "triton"}).name == "triton"
    assert found.engine({"llm-d.ai/engine-type": "vllm"}).name == "sglang"


def test_the_engine_of_others_is_one_that_is_known() -> None:
    assert producer("core-metrics-extractor", defaultEngine="sglang").default_engine == "sglang"
    assert "defaultEngine must be one of" in refused("core-metrics-extractor", defaultEngine="x")


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        ("approx-prefix-cache-producer", {"blockSizeTokens": 0}),
        ("approx-prefix-cache-producer", {"lruCapacityPerServer": 0}),
        ("approx-prefix-cache-producer", {"maxPrefixTokensToMatch": -1}),
        ("precise-prefix-cache-producer", {"speculativeTTL": -2}),
        ("inflight-load-producer", {"outputRatio": -1}),
        ("inflight-load-producer", {"maxEstimatedOutputTokens": -1}),
    ],
)
def test_values_that_cannot_be_are_refused_also_where_they_have_no_effect(
    kind: str, parameters: dict[str, Any]
) -> None:
    assert "must be" in refused(kind, **parameters)


def test_a_configuration_hears_of_each_parameter_that_changes_nothing() -> None:
    text = b"""
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
  - type: queue-scorer
  - type: precise-prefix-cache-producer
    parameters: {speculativeTTL: 5s, speculativeIndexing: true}
"""
    told = [note for note in resolve(text, "some.yaml").notes if "changes nothing" in note]
    assert len(told) == 2
    assert told[0].startswith("some.yaml:7:18 'speculativeTTL' changes nothing here: predictions")


def test_parameters_without_effect_are_told_with_the_reason() -> None:
    found = registry.find("precise-prefix-cache-producer")
    assert found is not None
    assert "predictions are always made" in found.without_effect["speculativeTTL"]
    for kind in ("token-producer", "approx-prefix-cache-producer", "inflight-load-producer"):
        some = registry.find(kind)
        assert some is not None
        assert some.without_effect
        named = {parameter.yaml_name for parameter in some.parameters}
        assert set(some.without_effect) <= named
