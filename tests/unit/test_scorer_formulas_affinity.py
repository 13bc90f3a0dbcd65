"""Formulas of scorers that go by labels, headers, attributes and the past."""

from collections.abc import Sequence
from dataclasses import replace
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
    Rung,
    Scorer,
    Source,
    Stage,
    Watcher,
)
from epp.framework.registry import build_scorer
from tests.fakes.endpoints import endpoint

REQUEST = Request(id="r", api="c", path="/", prompt_tokens=640, keys=tuple(range(10)))


def _scores(scorer: Scorer, pool: Sequence[Endpoint], request: Request = REQUEST) -> list[float]:
    return [float(score) for score in scorer.score(request, Candidates.of(pool))]


def _decided(
    scorer: Any, request: Request, chosen: Endpoint, prefill: Endpoint | None = None
) -> None:
    assert isinstance(scorer, Watcher)
    split = () if prefill is None else (prefill,)
    scorer.chosen(
        request,
        Decision(
            request_id=request.id,
            chosen=(chosen,),
            rung=Rung.PRECISE,
            reasons=(),
            prefilling=Stage(chosen=split),
        ),
    )


# Context length


@pytest.mark.parametrize(
    ("text", "tokens", "expected"),
    [
        ("0-2048", 2048, 0.3 + 0.7 * (0.7 / 1.2048)),
        ("0-2048", 0, 0.3 + 0.7 * (0.7 / 1.2048 + 0.3)),
        ("0-10000", 5000, 0.3 + 0.7 * (0.35 + 0.15)),
        ("640-640", 640, 1.0),
        ("0-2048", 3048, 0.15),
        ("4048-8192", 2048, 0.1),
        (" 0 - 2048 ", 3048, 0.15),
        ("", 10, 0.0),
        ("2048", 10, 0.0),
        ("0-1-2", 10, 0.0),
        ("9-1", 5, 0.0),
        ("a-b", 5, 0.0),
        ("0-9999999999999999999", 5, 0.0),
    ],
)
def test_the_nearer_and_tighter_the_range_the_better(
    text: str, tokens: int, expected: float
) -> None:
    scorer = build_scorer("context-length-aware", {})
    pool = [endpoint("a", labels={"llm-d.ai/context-length-range": text}), endpoint("b")]
    found = _scores(scorer, pool, replace(REQUEST, prompt_tokens=tokens))
    assert found == [pytest.approx(expected), 0.5]


def test_a_range_around_the_prompt_always_wins_against_one_beside_it() -> None:
    scorer = build_scorer("context-length-aware", {"label": "range"})
    inside, beside = (
        endpoint("a", labels={"range": "0-100000000"}),
        endpoint("b", labels={"range": "641-642"}),
    )
    first, second = _scores(scorer, [inside, beside])
    assert first > 0.3 > second


def test_filtering_by_length_drops_ranges_that_do_not_fit_and_keeps_who_has_none() -> None:
    texts = ["0-639", "0-640", "640-641", "641-900", "x"]
    pool = [endpoint(text, labels={"range": text}) for text in texts] + [endpoint("none")]
    for filtering, expected in (
        (True, [False, True, True, False, False, True]),
        (False, [True] * 6),
    ):
        parameters = {"label": "range", "enableFiltering": filtering}
        scorer: Any = build_scorer("context-length-aware", parameters)
        assert scorer.keep(REQUEST, Candidates.of(pool)) == expected


# Labels


def test_a_header_prefers_endpoints_whose_label_has_its_value() -> None:
    scorer = build_scorer(
        "header-label-affinity-scorer", {"headerName": "X-Zone ", "labelKey": "zone"}
    )
    pool = [
        endpoint("a", labels={"zone": "one"}),
        endpoint("b", labels={"zone": "two"}),
        endpoint("c"),
    ]
    asked = {"one": [1.0, 0.0, 0.0], "three": [0.0] * 3, "": [0.0] * 3}
    for value, expected in asked.items():
        assert _scores(scorer, pool, replace(REQUEST, headers={"x-zone": value})) == expected
    assert _scores(scorer, pool) == [0.0] * 3


HOST, RACK, ZONE, REGION = (
    "kubernetes.io/hostname",
    "topology.kubernetes.io/rack",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
)


def test_the_tightest_shared_place_counts() -> None:
    peer = endpoint("peer", labels={HOST: "h", RACK: "r", ZONE: "z", REGION: "e"})
    pool = [
        endpoint("host", labels={HOST: "h"}),
        endpoint("rack", labels={HOST: "x", RACK: "r", ZONE: "z"}),
        endpoint("zone", labels={RACK: "", ZONE: "z"}),
        endpoint("region", labels={ZONE: "y", REGION: "e"}),
        endpoint("far", labels={REGION: "q"}),
        endpoint("unknown"),
    ]
    scorer = build_scorer("topology-affinity-scorer", {})
    beside = replace(REQUEST, peer=peer)
    assert _scores(scorer, pool, beside) == [1.0, 0.2, 0.05, 0.02, 0.0, 0.0]
    assert _scores(scorer, pool) == [0.0] * 6
    nameless = replace(REQUEST, peer=endpoint("peer", labels={RACK: ""}))
    assert _scores(scorer, pool, nameless) == [0.0] * 6
    own = build_scorer("topology-affinity-scorer", {"rack": "my/rack"})
    racks = [endpoint("a", labels={"my/rack": "r"}), endpoint("b", labels={RACK: "r"})]
    near = replace(REQUEST, peer=endpoint("peer", labels={"my/rack": "r", RACK: "r"}))
    assert _scores(own, racks, near) == [0.2, 0.0]


# Attributes


def _by(kind: str, attribute: str = "KVCacheUsagePercent", **normalization: Any) -> Scorer:
    algorithm = {"type": f"linear_{kind}_is_better", "normalization": normalization}
    return build_scorer(
        "endpoint-attribute-scorer", {"attributeKey": attribute, "algorithm": algorithm}
    )


def test_an_attribute_is_rated_within_the_candidates_or_within_fixed_bounds() -> None:
    uses = (0.2, 0.6, 1.0, None)
    pool = [endpoint(str(use), load=Load(kv_usage=use)) for use in uses]
    assert _scores(_by("lower"), pool) == pytest.approx([1.0, 0.5, 0.0, 0.0])
    assert _scores(_by("higher", adaptiveRange={}), pool) == pytest.approx([0.0, 0.5, 1.0, 0.0])
    fixed = {"fixedRange": {"min": 0.4, "max": 0.8}}
    assert _scores(_by("lower", **fixed), pool) == pytest.approx([1.0, 0.5, 0.0, 0.0])
    assert _scores(_by("higher", **fixed), pool) == pytest.approx([0.0, 0.5, 1.0, 0.0])


def test_groups_of_parameters_are_read_in_both_spellings() -> None:
    pool = [endpoint("a", load=Load(kv_usage=0.5))]
    for fixed in ({"fixedRange": {"min": 0, "max": 1}}, {"fixed_range": {"min": 0, "max": 1}}):
        assert _scores(_by("lower", **fixed), pool) == [0.5]


def test_equal_attributes_are_neutral_and_unknown_ones_worst() -> None:
    pool = [
        endpoint("a", load=Load(waiting=3)),
        endpoint("b", load=Load(waiting=3)),
        endpoint("c"),
    ]
    assert _scores(_by("lower", "WaitingQueueSize"), pool) == [1.0, 1.0, 0.0]
    assert _scores(_by("higher", "RunningRequestsSize"), pool) == [0.0, 0.0, 0.0]
    assert _scores(_by("lower", "reserved_requests"), pool) == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"attributeKey": "custom.depth"}, "known are WaitingQueueSize"),
        ({"algorithm": {"type": "log"}}, r"algorithm\.type: input should be"),
        ({"algorithm": {"type": "linear_lower_is_better", "x": 1}}, r"algorithm\.x: there is no"),
        (
            {
                "algorithm": {
                    "type": "linear_lower_is_better",
                    "normalization": {"fixedRange": {"min": 1, "max": 1}},
                }
            },
            "min must be below max",
        ),
        (
            {
                "algorithm": {
                    "type": "linear_lower_is_better",
                    "normalization": {"fixedRange": {"min": 0, "max": float("inf")}},
                }
            },
            "finite",
        ),
        (
            {
                "algorithm": {
                    "type": "linear_lower_is_better",
                    "normalization": {"fixedRange": {"min": 0, "max": 1}, "adaptiveRange": {}},
                }
            },
            "not both",
        ),
    ],
)
def test_faulty_attribute_parameters_are_refused_by_place(
    parameters: dict[str, Any], said: str
) -> None:
    whole = {
        "attributeKey": "WaitingQueueSize",
        "algorithm": {"type": "linear_lower_is_better"},
        **parameters,
    }
    with pytest.raises(PluginError, match=said):
        build_scorer("endpoint-attribute-scorer", whole)


# Taking turns


def _held(name: str, tokens: int) -> Endpoint:
    return replace(endpoint(name), match=Match(tokens, Source.PREDICTED, 0.5))


def test_prompts_that_nobody_holds_go_to_who_had_none_and_then_in_turn() -> None:
    scorer = build_scorer("no-hit-lru-scorer", {})
    a, b, c = (endpoint(name) for name in "abc")
    pool = [a, b, c]
    assert _scores(scorer, pool) == [1.0, 1.0, 1.0]
    _decided(scorer, REQUEST, b)
    assert _scores(scorer, pool) == [1.0, 0.0, 1.0]
    _decided(scorer, REQUEST, a)
    assert _scores(scorer, pool) == [0.0, 0.5, 1.0]
    _decided(scorer, REQUEST, c)
    assert _scores(scorer, pool) == [0.5, 1.0, 0.0]
    assert _scores(scorer, [c, a]) == [0.0, 1.0]
    assert _scores(scorer, [c]) == [1.0]


def test_a_prompt_that_somebody_holds_is_neutral_and_no_turn() -> None:
    scorer = build_scorer("no-hit-lru-scorer", {})
    warm = [_held("a", 64), _held("b", 0)]
    assert _scores(scorer, warm) == [0.5, 0.5]
    _decided(scorer, REQUEST, warm[0])
    cold = [endpoint("a"), endpoint("b")]
    assert _scores(scorer, cold) == [1.0, 1.0]
    assert _scores(scorer, warm) == [0.5, 0.5]
    _decided(scorer, REQUEST, warm[1])
    assert _scores(scorer, cold) == [1.0, 1.0]


def test_both_endpoints_of_a_split_request_had_their_turn_and_who_left_is_forgotten() -> None:
    scorer: Any = build_scorer("no-hit-lru-scorer", {"lruSize": 2})
    a, b, c = pool = [endpoint(name) for name in "abc"]
    _scores(scorer, pool)
    _decided(scorer, REQUEST, a, prefill=b)
    assert _scores(scorer, pool)[2] == 1.0
    assert max(_scores(scorer, pool)[:2]) < 1.0
    scorer.removed([a.id, c.id])
    assert _scores(scorer, pool)[0] == 1.0
    for one in (a, c):
        _scores(scorer, pool)
        _decided(scorer, REQUEST, one)
    assert _scores(scorer, pool) == [0.5, 1.0, 0.0]


def test_a_decision_that_nobody_scored_before_is_no_turn() -> None:
    scorer = build_scorer("no-hit-lru-scorer", {})
    pool = [endpoint("a"), endpoint("b")]
    _decided(scorer, REQUEST, pool[0])
    assert _scores(scorer, pool) == [1.0, 1.0]


def test_a_turn_makes_an_endpoint_the_last_to_be_forgotten() -> None:
    scorer = build_scorer("no-hit-lru-scorer", {"lruSize": 2})
    a, b, c = pool = [endpoint(name) for name in "abc"]
    for one in (a, b, a, c):
        _scores(scorer, pool)
        _decided(scorer, REQUEST, one)
    assert _scores(scorer, pool) == [0.5, 1.0, 0.0]


def test_the_smallest_memory_of_turns_holds_one() -> None:
    scorer = build_scorer("no-hit-lru-scorer", {"lruSize": 1})
    a, b = pool = [endpoint(name) for name in "ab"]
    for one in (a, b):
        _scores(scorer, pool)
        _decided(scorer, REQUEST, one)
    assert _scores(scorer, pool) == [1.0, 0.0]


def test_only_the_first_choice_of_each_stage_has_its_turn() -> None:
    scorer: Any = build_scorer("no-hit-lru-scorer", {})
    pool = [endpoint(name) for name in "abcd"]
    _scores(scorer, pool)
    scorer.chosen(
        REQUEST,
        Decision(
            request_id="r",
            chosen=tuple(pool[:2]),
            prefilling=Stage(chosen=tuple(pool[2:])),
            rung=Rung.PRECISE,
            reasons=(),
        ),
    )
    assert [score == 1.0 for score in _scores(scorer, pool)] == [False, True, False, True]


def test_requests_that_are_scored_and_never_routed_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scorer = build_scorer("no-hit-lru-scorer", {})
    monkeypatch.setitem(type(scorer).score.__globals__, "MAX_REQUESTS", 2)
    pool = [endpoint("a"), endpoint("b")]
    asked = [replace(REQUEST, id=f"r{number}") for number in range(3)]
    for each in asked:
        _scores(scorer, pool, each)
    _decided(scorer, asked[0], pool[0])
    assert _scores(scorer, pool, asked[2]) == [1.0, 1.0]
    _decided(scorer, asked[1], pool[0])
    assert _scores(scorer, pool, asked[2]) == [0.0, 1.0]
