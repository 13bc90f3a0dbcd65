"""Lists and watches, played line by line; what pods and pools say."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.control.kube.declared import OBJECTIVES, REWRITES, Reading, of_pool
from epp.control.kube.membership import Membership
from epp.control.kube.objects import Pod, pods_by, read_pod, read_pool
from epp.control.kube.reflection import Failed, Next, Reflection
from epp.framework import PoolId
from epp.state.event_ports import NOTHING_SAID, EventPorts, EventSource, source_of


def pod(name: str, version: int, ip: str = "10.0.0.1", **meta: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version), **meta},
        "status": {"podIP": ip, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def page(version: int, *items: dict[str, Any], more: str = "") -> bytes:
    metadata = {"resourceVersion": str(version), "continue": more}
    return json.dumps({"metadata": metadata, "items": items}).encode()


def line(kind: str, found: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": found}).encode()


def listed(*items: dict[str, Any], version: int = 100, most: int = 10) -> Reflection[Pod]:
    reflection = Reflection(read_pod, most=most)
    reflection.page(page(version, *items))
    return reflection


def names(reflection: Reflection[Pod]) -> list[str]:
    return sorted(one.name for one in reflection.values.values())


def test_a_list_comes_first_and_a_watch_goes_on_from_its_version() -> None:
    reflection: Reflection[Pod] = Reflection(read_pod)
    assert reflection.next is Next.LIST
    assert reflection.page(page(7, pod("a", 3), more="t")) is None
    assert reflection.query["continue"] == "t"
    changes = reflection.page(page(7, pod("b", 4)))
    assert changes is not None
    assert sorted(changes) == ["uid-a", "uid-b"]
    assert reflection.next is Next.WATCH
    assert reflection.query["resourceVersion"] == "7"


def test_a_new_list_after_410_tells_only_what_differs() -> None:
    reflection = listed(pod("a", 1), pod("b", 2), pod("c", 3))
    said = reflection.line(line("ERROR", {"code": 410, "reason": "Expired"}))
    assert isinstance(said, Failed)
    assert reflection.next is Next.LIST
    assert names(reflection) == ["a", "b", "c"]  # as long as nobody knows better
    changes = reflection.page(page(200, pod("b", 150), pod("c", 151, "10.0.0.9"), pod("d", 152)))
    assert changes is not None
    assert {key: one and one.ip for key, one in changes.items()} == {
        "uid-a": None,
        "uid-c": "10.0.0.9",
        "uid-d": "10.0.0.1",
    }


@pytest.mark.parametrize("answer", [b"{}", b'{"items": []}', b"<html>", b'{"items": 3}'])
def test_an_answer_that_is_no_list_empties_nothing(answer: bytes) -> None:
    reflection = listed(pod("a", 1))
    reflection.expired()
    with pytest.raises(ValueError, match=r"."):
        reflection.page(answer)
    assert names(reflection) == ["a"]


def test_another_error_keeps_the_place() -> None:
    reflection = listed(pod("a", 1))
    assert isinstance(reflection.line(line("ERROR", {"code": 500})), Failed)
    assert reflection.query["resourceVersion"] == "100"


@pytest.mark.parametrize("half", [b'{"type":"MODI', b"", b"[]", b'{"type": 3}'])
def test_half_a_line_changes_nothing(half: bytes) -> None:
    reflection = listed(pod("a", 1))
    with pytest.raises(msgspec.MsgspecError):
        reflection.line(half)
    assert (reflection.version, names(reflection)) == ("100", ["a"])


def test_an_object_that_cannot_be_read_is_none_of_ours_any_more() -> None:
    reflection = listed(pod("a", 1), {"metadata": {"name": 7}})
    assert names(reflection) == ["a"]
    odd = {**pod("a", 101), "status": {"podIP": 5}}
    assert reflection.line(line("MODIFIED", odd)) == {"uid-a": None}
    assert reflection.counts["odd"] == 2


def test_no_more_than_the_limit_is_held_and_what_is_left_out_is_counted() -> None:
    reflection = listed(pod("a", 1), pod("b", 2), pod("c", 3), most=2)
    assert names(reflection) == ["a", "b"]
    assert reflection.line(line("ADDED", pod("d", 101))) == {}
    assert reflection.counts["limited"] == 2
    reflection.line(line("DELETED", pod("a", 102)))
    assert reflection.line(line("ADDED", pod("e", 103))) != {}


def test_a_change_that_means_nothing_to_endpoints_is_no_change() -> None:
    reflection = listed(pod("a", 1))
    assert reflection.line(line("MODIFIED", pod("a", 101, annotations={"x": "y"}))) == {}
    assert reflection.version == "101"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=30))
def test_whatever_happens_the_reflection_is_what_the_server_has(
    steps: list[tuple[str, bool]],
) -> None:
    """Also when every line comes twice, and the first half of them once more at the end."""
    reflection = listed()
    there: set[str] = set()
    lines: list[bytes] = []
    for number, (name, stays) in enumerate(steps):
        kind = ("MODIFIED" if name in there else "ADDED") if stays else "DELETED"
        (there.add if stays else there.discard)(name)
        lines.append(line(kind, pod(name, 101 + number)))
    doubled = [one for one in lines for _ in range(2)]
    for each in doubled + lines[: len(lines) // 2]:
        reflection.line(each)
    assert names(reflection) == sorted(there)


def test_a_pool_of_either_version_says_the_same() -> None:
    meta = {"name": "p", "uid": "u", "resourceVersion": "1"}
    new = {"selector": {"matchLabels": {"b": "2", "a": "1"}}, "targetPorts": [{"number": 8000}]}
    old = {"selector": {"a": "1", "b": "2"}, "targetPortNumber": 8000}
    found = [
        read_pool(json.dumps({"metadata": meta, "spec": spec}).encode()) for spec in (new, old)
    ]
    assert found[0] == found[1]
    assert found[0].value.selector == "a=1,b=2"


_ONE = {"matchLabels": {"a": "1"}}


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({}, "no labels"),
        ({"selector": {"matchLabels": {}}, "targetPorts": [{"number": 1}]}, "no labels"),
        ({"selector": _ONE, "targetPorts": []}, "1 to 8 ports"),
        ({"selector": _ONE, "targetPorts": [{"number": 70000}]}, "between 1 and 65535"),
        ({"selector": _ONE, "targetPorts": [{"number": 1}] * 2}, "each once"),
        ({"selector": {"a": {"b": "c"}}, "targetPortNumber": 8000}, "without a value"),
    ],
)
def test_a_pool_that_would_select_everything_or_nothing_is_odd(
    spec: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        read_pool(json.dumps({"metadata": {"name": "p"}, "spec": spec}).encode())


@pytest.mark.parametrize(
    ("labels", "ports"),
    [("", ["1"]), ("app", ["1"]), ("app in (a)", ["1"]), ("a=b,", ["1"]), ("a=b", ["x"])],
)
def test_a_selector_that_is_none_is_refused(labels: str, ports: list[str]) -> None:
    with pytest.raises(ValueError, match="expected"):
        pods_by(labels, ports)


@pytest.mark.parametrize(
    ("annotations", "ports"),
    [
        ({}, None),
        ({"llm-d.ai/active-ports": "8000, 8001"}, {8000, 8001}),
        ({"inference.networking.k8s.io/active-ports": "8000"}, {8000}),
        ({"llm-d.ai/active-ports": ""}, set()),
        ({"llm-d.ai/active-ports": "all"}, None),
    ],
)
def test_active_ports_are_read_in_either_spelling(
    annotations: dict[str, str], ports: set[int] | None
) -> None:
    found = read_pod(json.dumps(pod("a", 1, annotations=annotations)).encode()).value
    assert found.active_ports == ports


@pytest.mark.parametrize(
    ("annotations", "said"),
    [
        ({}, NOTHING_SAID),
        ({"gie-epp/kv-events-port": " 5557 "}, EventPorts(events=5557)),
        (
            {"gie-epp/kv-replay-port": "5600", "gie-epp/kv-events-topic": "kv@"},
            EventPorts(replay=5600, topic="kv@"),
        ),
        ({"gie-epp/kv-events-port": "0"}, EventPorts(events=0)),
        ({"gie-epp/kv-events-port": "65536"}, NOTHING_SAID),
        ({"gie-epp/kv-events-port": "first"}, NOTHING_SAID),
    ],
)
def test_a_pod_without_a_sidecar_says_where_its_events_are(
    annotations: dict[str, str], said: EventPorts
) -> None:
    plain = pod("a", 1, annotations=annotations)
    assert read_pod(json.dumps(plain).encode()).value.events == said
    plain["spec"] = {"initContainers": [{"name": "epp-sidecar"}]}
    assert read_pod(json.dumps(plain).encode()).value.events == NOTHING_SAID


def test_each_of_several_ports_is_a_rank_whose_events_are_one_port_higher() -> None:
    members = Membership(PoolId("p"), odd_role=lambda *_: None)
    members.listen_at((8000, 8001))
    status = {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
    plain = pod("a", 1, annotations={"gie-epp/kv-events-port": "5557"}) | {"status": status}
    members.tell("a", read_pod(json.dumps(plain).encode()).value)
    assert [
        source_of(member.address, member.events, EventPorts(replay=5600))
        for member in members.members()
    ] == [
        EventSource(
            events=f"tcp://10.0.0.1:{5557 + rank}",
            replay=f"tcp://10.0.0.1:{5600 + rank}",
            topic="",
            rank=None,
        )
        for rank in range(2)
    ]


def test_our_sidecar_is_known_by_its_container_native_or_not() -> None:
    for where in ("containers", "initContainers"):
        found = {**pod("a", 1), "spec": {where: [{"name": "epp-sidecar"}]}}
        assert read_pod(json.dumps(found).encode()).value.has_sidecar
    assert not read_pod(json.dumps(pod("a", 1)).encode()).value.has_sidecar


def test_declarations_are_those_of_the_pool_oldest_first() -> None:
    def read(plural: str, name: str, when: str, pool: str = "p", **spec: Any) -> Any:
        meta = {"name": name, "uid": name, "creationTimestamp": when}
        found = {"metadata": meta, "spec": {"poolRef": {"name": pool}, **spec}}
        return Reading(plural, "llm-d.ai")(json.dumps(found).encode()).value

    rules = [{"targets": [{"modelRewrite": "m"}]}]
    declared = of_pool(
        [
            read(REWRITES, "young", "2026-02-01T00:00:00Z", rules=rules),
            read(REWRITES, "old", "2026-01-01T00:00:00Z", rules=rules),
            read(OBJECTIVES, "o", "2026-01-01T00:00:00Z", priority=3),
            read(OBJECTIVES, "other", "2026-01-01T00:00:00Z", pool="q"),
        ],
        "p",
    )
    assert [one.metadata.name for one in declared.rewrites] == ["old", "young"]
    assert [one.metadata.name for one in declared.objectives] == ["o"]
