"""Who stays: each filter's rule, its borders, and what it does when it knows nothing."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from epp.errors import PluginError
from epp.framework import (
    Candidates,
    Decision,
    Endpoint,
    Load,
    Match,
    Request,
    Role,
    Rung,
    registry,
)
from epp.framework.registry import Kind
from tests.fakes.endpoints import endpoint

ROLE = "llm-d.ai/role"


def request(**given: Any) -> Request:
    return Request(id="r", api="completions", path="/v1/completions", **given)


def kept(
    kind: str, endpoints: Sequence[Endpoint], parameters: Mapping[str, Any] | None = None, **of: Any
) -> list[str]:
    """Names of those that a filter of this type keeps."""
    plugin = build(kind, parameters)
    mask = plugin.keep(request(**of), Candidates.of(endpoints))
    assert len(mask) == len(endpoints)
    return [one.id.name for one, stays in zip(endpoints, mask, strict=True) if stays]


def build(kind: str, parameters: Mapping[str, Any] | None = None) -> Any:
    found = registry.find(kind)
    assert found is not None
    assert found.kind is Kind.FILTER
    return found.build(parameters or {})


def refused(kind: str, parameters: Mapping[str, Any]) -> str:
    with pytest.raises(PluginError) as refusal:
        build(kind, parameters)
    return refusal.value.what


@pytest.mark.parametrize(
    ("kind", "roles"),
    [
        ("decode-filter", {"", "decode", "prefill-decode", "encode-prefill-decode", "both"}),
        (
            "prefill-filter",
            {"prefill", "encode-prefill", "prefill-decode", "encode-prefill-decode", "both"},
        ),
        ("encode-filter", {"encode", "encode-prefill", "encode-prefill-decode"}),
    ],
)
def test_a_role_takes_the_parts_that_the_reference_gives_it(kind: str, roles: set[str]) -> None:
    everybody = [endpoint(role.value, role=role) for role in Role]
    assert set(kept(kind, everybody)) == roles


LABELLED = [
    endpoint("gold", labels={"tier": "gold", "gpu": "H100"}),
    endpoint("silver", labels={"tier": "silver", "gpu": "H100"}),
    endpoint("bare"),
]


@pytest.mark.parametrize("kind", ["label-selector-filter", "by-label-selector"])
@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ({}, ["gold", "silver", "bare"]),
        ({"matchLabels": {"gpu": "H100"}}, ["gold", "silver"]),
        ({"matchLabels": {"gpu": "H100", "tier": "gold"}}, ["gold"]),
        ({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["gold"]}]}, ["gold"]),
        (
            {"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["gold"]}]},
            ["silver", "bare"],
        ),
        ({"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}, ["gold", "silver"]),
        ({"matchExpressions": [{"key": "gpu", "operator": "DoesNotExist"}]}, ["bare"]),
        (
            {
                "matchLabels": {"gpu": "H100"},
                "matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["gold"]}],
            },
            ["silver"],
        ),
    ],
)
def test_a_selector_matches_as_kubernetes_does(
    kind: str, selector: dict[str, Any], names: list[str]
) -> None:
    assert kept(kind, LABELLED, selector) == names


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ({"key": "tier", "operator": "In"}, "take values"),
        ({"key": "tier", "operator": "Exists", "values": ["x"]}, "take none"),
        ({"key": "", "operator": "Exists"}, "key must name a label"),
        ({"key": "tier", "operator": "in", "values": ["x"]}, "matchExpressions.0.operator"),
        ({"key": "tier", "operator": "Exists", "value": "x"}, "no such parameter"),
    ],
)
def test_a_selector_that_says_nothing_clear_is_refused(
    expression: dict[str, Any], said: str
) -> None:
    assert said in refused("label-selector-filter", {"matchExpressions": [expression]})


def test_one_label_has_one_of_the_values_or_is_missing_where_that_is_allowed() -> None:
    gold = {"label": "tier", "validValues": ["gold"]}
    assert kept("by-label", LABELLED, gold) == ["gold"]
    assert kept("by-label", LABELLED, gold | {"allowsNoLabel": True}) == ["gold", "bare"]
    assert kept("by-label", LABELLED, {"label": "tier", "allowsNoLabel": True}) == ["bare"]
    assert "validValues" in refused("by-label", {"label": "tier"})
    assert "label" in refused("by-label", {"label": "", "validValues": ["x"]})


def test_partners_have_equal_labels_and_nobody_stands_in_for_one() -> None:
    revisions = [
        endpoint("old", labels={"revision": "1", "layout": "a"}),
        endpoint("new", labels={"revision": "2", "layout": "a"}),
        endpoint("bare"),
    ]
    one, both = {"labels": ["revision"]}, {"labels": ["revision", "layout"]}
    assert kept("pair-label-filter", revisions, one) == ["old", "new", "bare"]
    assert kept("pair-label-filter", revisions, one, peer=revisions[1]) == ["new"]
    assert kept("pair-label-filter", revisions, one, peer=revisions[2]) == ["bare"]
    peer = endpoint("other", labels={"revision": "2", "layout": "b"})
    assert kept("pair-label-filter", revisions, both, peer=peer) == []
    assert "labels" in refused("pair-label-filter", {"labels": []})
    assert "labels" in refused("pair-label-filter", {"labels": [""]})
    assert "needs labels" in refused("pair-label-filter", {})


PROMPT = {"keys": tuple(range(10)), "prompt_tokens": 640}


def _warm(name: str, tokens: int, pending: int = 0) -> Endpoint:
    load = Load(reserved_prefill_tokens=pending)
    return endpoint(name, match=Match(tokens=tokens), load=load)


def test_the_warm_stay_from_the_threshold_on() -> None:
    pool = [_warm("at", 512), _warm("below", 511), _warm("cold", 0)]
    assert kept("prefix-cache-affinity-filter", pool, **PROMPT) == ["at"]
    half = {"affinityThreshold": 0.5}
    assert kept("prefix-cache-affinity-filter", pool, half, **PROMPT) == ["at", "below"]
    whole = [_warm("all", 640), _warm("most", 639)]
    assert kept("prefix-cache-affinity-filter", whole, {"affinityThreshold": 1}, **PROMPT) == [
        "all"
    ]


@pytest.mark.parametrize(
    ("pool", "parameters", "of"),
    [
        ([_warm("a", 640), _warm("b", 0)], {"affinityThreshold": 0}, PROMPT),
        ([_warm("a", 0), _warm("b", 64)], {}, PROMPT),
        ([_warm("a", 640), _warm("b", 640)], {}, PROMPT),
        ([_warm("a", 640), _warm("b", 0)], {}, {}),
        ([_warm("a", 640), _warm("b", 0)], {"explorationProbability": 1}, PROMPT),
    ],
    ids=["no threshold", "nobody is warm", "all are warm", "no prompt", "exploring"],
)
def test_everybody_stays_where_nothing_sets_the_warm_apart(
    pool: list[Endpoint], parameters: dict[str, Any], of: dict[str, Any]
) -> None:
    assert kept("prefix-cache-affinity-filter", pool, parameters, **of) == ["a", "b"]


def test_a_warm_endpoint_that_is_too_far_behind_holds_nobody_back() -> None:
    def at(pending: int, **parameters: float) -> list[str]:
        pool = [_warm("warm", 640, pending), _warm("busier", 640, 10**9), _warm("cold", 0, 100)]
        given = {"peakPrefillThroughput": 1000, "maxTTFTPenaltyMs": 2000} | parameters
        return kept("prefix-cache-affinity-filter", pool, given, **PROMPT)

    assert at(2100) == ["warm", "busier"]
    assert at(2101) == ["warm", "busier", "cold"]
    assert at(10**6, maxTTFTPenaltyMs=0) == ["warm", "busier"]


def test_the_share_of_exploring_requests_is_the_one_that_was_asked_for() -> None:
    plugin = build("prefix-cache-affinity-filter", {"explorationProbability": 0.1})
    pool = Candidates.of([_warm("warm", 640), _warm("cold", 0)])
    ids = [f"1f{number:06x}" for number in range(5000)]
    explored = 0
    for name in ids:
        asked = Request(id=name, api="completions", path="/", **PROMPT)
        mask = list(plugin.keep(asked, pool))
        assert mask == list(plugin.keep(asked, pool))
        explored += all(mask)
    assert 400 <= explored <= 600


@pytest.mark.parametrize(
    "parameters",
    [
        {"affinityThreshold": 1.1},
        {"explorationProbability": -0.1},
        {"explorationProbability": 1.1},
        {"maxTTFTPenaltyMs": -1},
        {"peakPrefillThroughput": 0},
        {"ttftSource": "oracle"},
    ],
)
def test_an_affinity_that_cannot_be_is_refused_by_its_name(parameters: dict[str, Any]) -> None:
    (name,) = parameters
    assert f"{name} must" in refused("prefix-cache-affinity-filter", parameters)


BUSY = [
    endpoint("idle", load=Load(waiting=0, running=0, kv_usage=0.0)),
    endpoint("busy", load=Load(waiting=1, running=41, kv_usage=0.81, reserved_requests=9)),
    endpoint("silent"),
]


@pytest.mark.parametrize(
    ("metric", "limit"),
    [
        ("running-requests", 40),
        ("waiting-queue", 0),
        ("kv-cache-utilization", 0.8),
        ("active-requests", 8),
    ],
)
def test_who_is_above_a_limit_goes_and_who_says_nothing_stays(metric: str, limit: float) -> None:
    conditions = {"conditions": [{"metric": metric, "maxValue": limit}]}
    assert kept("utilization-filter", BUSY, conditions) == ["idle", "silent"]
    at_it = {"conditions": [{"metric": metric, "maxValue": limit + (0.01 if limit < 1 else 1)}]}
    if metric != "waiting-queue":
        assert kept("utilization-filter", BUSY, at_it) == ["idle", "busy", "silent"]


def test_all_conditions_must_hold_and_the_fallback_is_asked_for() -> None:
    rules = [
        {"metric": "running-requests", "maxValue": 100},
        {"metric": "waiting-queue", "maxValue": 0},
    ]
    assert kept("utilization-filter", BUSY[1:2], {"conditions": rules}) == []
    fallback = {"conditions": rules, "fallbackOnEmpty": True}
    assert kept("utilization-filter", BUSY[1:2], fallback) == ["busy"]
    assert kept("utilization-filter", BUSY, fallback) == ["idle", "silent"]


@pytest.mark.parametrize(
    "conditions",
    [
        [],
        [{"metric": "waiting-queue"}],
        [{"metric": "waiting-queue", "maxValue": -1}],
        [{"metric": "kv-cache-utilization", "maxValue": 1.5}],
        [{"metric": "waiting", "maxValue": 1}],
    ],
)
def test_a_condition_that_cannot_be_is_refused(conditions: list[dict[str, Any]]) -> None:
    assert "conditions" in refused("utilization-filter", {"conditions": conditions})


@pytest.mark.parametrize(
    ("operator", "names"),
    [
        ("LessThan", ["idle"]),
        ("LessThanOrEqual", ["idle", "busy"]),
        ("GreaterThan", []),
        ("GreaterThanOrEqual", ["busy"]),
        ("Equal", ["busy"]),
        ("NotEqual", ["idle"]),
    ],
)
def test_an_attribute_is_compared_with_the_threshold(operator: str, names: list[str]) -> None:
    given = {
        "attribute": "RunningRequestsSize",
        "onMissing": "Fail",
        "algorithm": {"type": "threshold", "threshold": {"operator": operator, "value": 41}},
    }
    assert kept("endpoint-attribute-filter", BUSY, given) == names
    assert kept("endpoint-attribute-filter", BUSY, given | {"onMissing": "Pass"}) == [
        *names,
        "silent",
    ]
    if not names:
        fallback = given | {"fallbackOnEmpty": True}
        assert kept("endpoint-attribute-filter", BUSY, fallback) == ["idle", "busy", "silent"]


def test_an_attribute_that_is_not_kept_is_refused_with_those_that_are() -> None:
    algorithm = {"type": "threshold", "threshold": {"operator": "LessThan", "value": 1}}
    said = refused("endpoint-attribute-filter", {"attribute": "power", "algorithm": algorithm})
    assert "'power'" in said
    assert "RunningRequestsSize" in said
    odd = {"attribute": "running", "algorithm": algorithm | {"type": "topK"}}
    assert "algorithm.type" in refused("endpoint-attribute-filter", odd)


PLACES = [
    endpoint("same", labels={"kubernetes.io/hostname": "h1", "topology.kubernetes.io/zone": "z1"}),
    endpoint("zone", labels={"kubernetes.io/hostname": "h2", "topology.kubernetes.io/zone": "z1"}),
    endpoint("far", labels={"kubernetes.io/hostname": "h3", "topology.kubernetes.io/zone": "z2"}),
    endpoint("unknown"),
]


def test_the_near_stay_and_nearness_is_a_wish() -> None:
    everybody = [one.id.name for one in PLACES]
    assert kept("topology-affinity-filter", PLACES) == everybody
    assert kept("topology-affinity-filter", PLACES, peer=PLACES[0]) == ["same"]
    zone = {"minAffinity": "zone"}
    assert kept("topology-affinity-filter", PLACES, zone, peer=PLACES[0]) == ["same", "zone"]
    assert kept("topology-affinity-filter", PLACES[2:], peer=PLACES[0]) == ["far", "unknown"]
    assert kept("topology-affinity-filter", PLACES, peer=PLACES[3]) == everybody
    assert "minAffinity" in refused("topology-affinity-filter", {"minAffinity": "planet"})


def _token(name: str) -> str:
    return base64.b64encode(f"{name}:8000".encode()).decode()


@pytest.mark.parametrize(
    ("header", "names"),
    [
        (_token("idle"), ["idle"]),
        (_token("gone"), ["idle", "busy", "silent"]),
        ("%%%", ["idle", "busy", "silent"]),
        ("", ["idle", "busy", "silent"]),
    ],
)
def test_a_token_keeps_its_endpoint_and_is_no_more_than_a_hint(
    header: str, names: list[str]
) -> None:
    headers = {"x-session-token": header}
    assert kept("session-affinity-filter", BUSY, headers=headers) == names


def test_a_named_session_stays_where_it_was_answered() -> None:
    plugin = build("session-affinity-filter", {"strategy": "session_id"})
    asked = request(headers={"x-session-id": "s1"})
    pool = Candidates.of(BUSY)
    assert all(plugin.keep(asked, pool))
    decision = Decision(request_id="r", chosen=(BUSY[1],), rung=Rung.PRECISE, reasons=())
    plugin.chosen(asked, decision)
    assert list(plugin.keep(asked, pool)) == [False, True, False]
    assert all(plugin.keep(asked, Candidates.of([BUSY[0], BUSY[2]])))


SIXES = [
    endpoint("a", address="10.0.0.1:8000"),
    endpoint("b", address="10.0.0.1:8001"),
    endpoint("c", address="[fd00::1]:8000"),
]


@pytest.mark.parametrize(
    ("header", "names"),
    [
        ("10.0.0.1", ["a", "b"]),
        ("10.0.0.1:8001", ["b"]),
        ("fd00::1", ["c"]),
        ("[fd00::1]", ["c"]),
        ("[fd00::1]:8000", ["c"]),
        (" 10.0.0.1:8000 , [fd00::1]:8000 ", ["a", "c"]),
        ("10.0.0.9", []),
        ("", []),
    ],
)
def test_a_test_names_its_endpoints(header: str, names: list[str]) -> None:
    headers = {"test-epp-endpoint-selection": header}
    assert kept("header-based-testing-filter", SIXES, headers=headers) == names
    assert kept("header-based-testing-filter", SIXES) == []


@pytest.mark.parametrize("kind", registry.names(Kind.FILTER))
def test_a_filter_of_no_candidates_keeps_none(kind: str) -> None:
    needed: dict[str, dict[str, Any]] = {
        "by-label": {"label": "x", "validValues": ["y"]},
        "pair-label-filter": {"labels": ["x"]},
        "utilization-filter": {"conditions": [{"metric": "waiting-queue", "maxValue": 1}]},
        "endpoint-attribute-filter": {
            "attribute": "waiting",
            "fallbackOnEmpty": True,
            "algorithm": {"type": "threshold", "threshold": {"operator": "Equal", "value": 1}},
        },
    }
    assert kept(kind, [], needed.get(kind), **PROMPT, peer=BUSY[0]) == []


@pytest.mark.parametrize(
    ("kind", "reads", "idle"),
    [
        (
            "prefix-cache-affinity-filter",
            "inflight-load predicted-latency prefix-match",
            "prefixMatchInfoProducerName inFlightLoadProducerName "
            "latencyPredictionInfoProducerName",
        ),
        ("served-model-filter", "served-models", ""),
        (
            "slo-headroom-tier-filter",
            "engine-metrics inflight-load predicted-latency prefix-match tokens",
            "",
        ),
    ],
)
def test_a_filter_says_what_it_reads_and_what_does_nothing(
    kind: str, reads: str, idle: str
) -> None:
    found = registry.find(kind)
    assert found is not None
    assert found.consumes == set(reads.split())
    assert set(found.without_effect) == set(idle.split())
