"""Which profiles a request runs through, by which header or decider, and what cannot be."""

from dataclasses import replace
from typing import Any

import pytest

from epp.errors import PluginError
from epp.framework import Course, NoCourse, Request, registry

DECIDERS = {"prefix-based-pd-decider", "always"}


def handler(kind: str, **parameters: Any) -> Any:
    found = registry.find(kind)
    assert found is not None
    return found.build(parameters)


def refused(kind: str, **parameters: Any) -> str:
    with pytest.raises(PluginError) as refusal:
        handler(kind, **parameters)
    return refusal.value.what


def request(**headers: str) -> Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request(id="r", api="completions", path="/v1/completions", headers=named)


def test_one_profile_runs_and_several_are_a_fault() -> None:
    single = handler("single-profile-handler")
    assert single.fault({"any"}, set()) == ""
    assert single.course(request(), ("any",)) == Course(destination="any")
    told = single.fault({"decode", "prefill"}, set())
    assert "decode, prefill" in told
    assert "disagg-profile-handler" in told


def test_without_a_decider_nothing_is_split() -> None:
    disagg = handler("disagg-profile-handler")
    assert disagg.fault({"decode"}, set()) == ""
    assert disagg.course(request(), ("decode", "prefill")) == Course(destination="decode")


SPLIT = Course(destination="d", prefill="p", prefill_decider="always")


@pytest.mark.parametrize(
    "parameters",
    [
        {"profiles": {"decode": "d", "prefill": "p"}, "deciders": {"prefill": "always"}},
        {
            "stageOrder": "decode_first",
            "profiles": {"decode": "d", "prefill": "p", "encode": "e"},
            "deciders": {"prefill": "always"},
        },
        {"decodeProfile": "d", "prefillProfile": "p", "prefillDeciderPluginName": "always"},
        {"decodeProfile": "d", "prefillProfile": "p", "deciderPluginName": "always"},
        {
            "decodeProfile": "d",
            "prefillProfile": "p",
            "deciderPluginName": "other",
            "prefillDeciderPluginName": "always",
        },
    ],
)
def test_both_forms_of_the_parameters_say_the_same(parameters: dict[str, Any]) -> None:
    disagg = handler("disagg-profile-handler", **parameters)
    assert disagg.fault({"d", "p"}, DECIDERS) == ""
    assert disagg.course(request(), ("d", "p")) == SPLIT


@pytest.mark.parametrize("order", ["prefill-first", "prefill_first", "PrefillFirst", "prefill"])
def test_who_prefills_may_be_chosen_first_where_there_is_a_profile_for_it(order: str) -> None:
    disagg = handler("disagg-profile-handler", stageOrder=order, deciders={"encode": "always"})
    assert disagg.fault({"decode", "encode"}, DECIDERS) == ""
    wanted = Course(destination="decode", encode="encode", encode_decider="always")
    assert disagg.course(request(), ("decode", "encode")) == wanted
    with_prefill = replace(wanted, prefill="prefill", prefill_first=True)
    assert disagg.course(request(), ("decode", "prefill", "encode")) == with_prefill


def test_usual_names_of_profiles_need_not_be_said() -> None:
    disagg = handler("disagg-profile-handler", deciders={"prefill": "always"})
    wanted = Course(destination="decode", prefill="prefill", prefill_decider="always")
    assert disagg.course(request(), ("decode", "prefill")) == wanted
    blank = handler("disagg-profile-handler", profiles={"decode": ""})
    assert blank.course(request(), ("decode",)) == Course(destination="decode")


@pytest.mark.parametrize(
    "parameters",
    [
        {"deciders": {"encode": "always", "prefill": "other"}, "profiles": {"encode": "e"}},
        {
            "encodeDeciderPluginName": "always",
            "encodeProfile": "e",
            "prefillDeciderPluginName": "other",
        },
    ],
)
def test_the_encode_stage_has_a_profile_and_a_decider_of_its_own(
    parameters: dict[str, Any],
) -> None:
    disagg = handler("disagg-profile-handler", **parameters)
    assert disagg.fault({"decode", "prefill", "e"}, {"always", "other"}) == ""
    assert disagg.course(request(), ()) == Course(
        destination="decode",
        prefill="prefill",
        prefill_decider="other",
        encode="e",
        encode_decider="always",
    )
    assert "no decider 'always'; known: other" in disagg.fault(
        {"decode", "prefill", "e"}, {"other"}
    )
    told = disagg.fault({"decode", "prefill"}, {"always", "other"})
    assert told == "there is no profile 'e' to choose who computes media"
    alone = handler("disagg-profile-handler", deciders={"encode": "always"})
    wanted = Course(destination="decode", encode="encode", encode_decider="always")
    assert alone.course(request(), ()) == wanted
    assert alone.fault({"decode", "encode"}, {"always"}) == ""


@pytest.mark.parametrize(
    ("profiles", "deciders", "said"),
    [
        ({"default"}, DECIDERS, "no profile 'decode'"),
        ({"decode"}, DECIDERS, "no profile 'prefill'"),
        ({"decode", "prefill"}, {"other"}, "no decider 'always'; known: other"),
        ({"decode", "prefill"}, set[str](), "no decider 'always'; known: none"),
    ],
)
def test_a_name_that_stands_nowhere_is_told_at_start(
    profiles: set[str], deciders: set[str], said: str
) -> None:
    disagg = handler("disagg-profile-handler", deciders={"prefill": "always"})
    assert said in disagg.fault(profiles, deciders)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"stageOrder": "first"}, "stageOrder must be decode-first or prefill-first"),
        (
            {"stageOrder": "prefill", "deciders": {"prefill": "x"}},
            "deciders.prefill is not asked with stageOrder prefill-first",
        ),
        (
            {"stageOrder": "prefill", "deciderPluginName": "x"},
            "deciders.prefill is not asked with stageOrder prefill-first",
        ),
        (
            {"deciders": {"prefill": "x"}, "decodeProfile": "d"},
            "profiles and deciders stand beside the flat form",
        ),
        ({"deciders": {"prefil": "x"}}, "deciders.prefil: there is no such parameter"),
        ({"profile": {}}, "did you mean 'profiles'"),
    ],
)
def test_what_is_not_offered_or_unclear_is_refused(parameters: dict[str, Any], said: str) -> None:
    assert said in refused("disagg-profile-handler", **parameters)


def test_the_older_handler_splits_by_its_decider_and_reaches_pods_by_their_primary_port() -> None:
    older = handler("pd-profile-handler", primaryPort=8000)
    deciders = {"always-disagg-pd-decider"}
    assert "no decider 'always-disagg-pd-decider'" in older.fault({"decode", "prefill"}, DECIDERS)
    assert "no profile 'prefill'" in older.fault({"decode"}, deciders)
    assert "no profile 'decode'" in older.fault({"prefill"}, deciders)
    assert older.fault({"decode", "prefill"}, deciders) == ""
    assert older.course(request(), ("decode", "prefill")) == Course(
        destination="decode",
        prefill="prefill",
        prefill_decider="always-disagg-pd-decider",
        primary_port=8000,
    )
    assert handler("pd-profile-handler").course(request(), ()).primary_port == 0
    assert "deciderPluginName" in refused("pd-profile-handler", deciderPluginName="")
    assert "primaryPort" in refused("pd-profile-handler", primaryPort=65536)


def test_engines_behind_one_port_are_reached_by_it() -> None:
    ranks = handler("data-parallel-profile-handler")
    assert ranks.fault({"any"}, set()) == ""
    assert ranks.course(request(), ("any",)) == Course(destination="any", primary_port=8000)
    assert "takes one profile, here are a, b" in ranks.fault({"a", "b"}, set())
    assert "primaryPort" in refused("data-parallel-profile-handler", primaryPort=0)


STAGES = ("encode", "prefill", "decode")


@pytest.mark.parametrize(
    ("headers", "wanted"),
    [
        ({"epp_profile": "prefill"}, "prefill"),
        ({"epp_profile": " encode "}, "encode"),
        ({"epp_profile": " "}, "decode"),
        ({}, "decode"),
    ],
)
def test_a_header_names_the_profile(headers: dict[str, str], wanted: str) -> None:
    by_header = handler("header-profile-handler")
    assert by_header.fault(set(STAGES), set()) == ""
    assert by_header.course(request(**headers), STAGES) == Course(destination=wanted)


def test_a_header_that_names_no_profile_is_the_clients_fault_and_is_not_repeated() -> None:
    by_header = handler("header-profile-handler")
    with pytest.raises(NoCourse, match="EPP-Profile names none of the profiles encode") as told:
        by_header.course(request(epp_profile="secret"), STAGES)
    assert "secret" not in str(told.value)


def test_where_there_is_one_profile_no_header_chooses() -> None:
    by_header = handler("header-profile-handler", headerName="X-Stage", defaultProfile="none")
    assert by_header.fault({"only"}, set()) == ""
    assert by_header.course(request(x_stage="other"), ("only",)) == Course(destination="only")
    assert "'none' is none of" in by_header.fault(set(STAGES), set())
    chosen = handler("header-profile-handler", headerName="X-Stage")
    assert chosen.course(request(x_stage="prefill"), STAGES).destination == "prefill"
    assert "headerName" in refused("header-profile-handler", headerName=" ")
