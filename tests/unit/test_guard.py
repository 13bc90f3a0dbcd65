"""Who belongs to the pool, and how a leg proves that it comes from there."""

import pytest

from epp.config.endpoints_file import parse_entries
from sidecar.guard import Guard, address
from sidecar.transfer.door import Caller, Door
from sidecar.transfer.legs import LIFE_S, Leg, LegKeys
from sidecar.transfer.targets import Target

FILE = b"""endpoints:
  - {name: me, address: 10.0.0.1, port: 8000}
  - {name: other, address: 10.0.0.2, port: 8000, legPort: 9100}
  - {name: six, address: "2001:DB8::1", port: 8000}
"""
ME, OTHER, SIX = Target("10.0.0.1", 8000), Target("10.0.0.2", 8000), Target("2001:db8::1", 8000)
KEY, NEXT = b"a" * 32, b"b" * 32


def guard() -> Guard:
    found = Guard("default/me")
    found.replace(parse_entries(FILE, "f").entries, 8000)
    return found


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (OTHER, None),
        (SIX, None),
        (Target("2001:db8:0:0::1", 8000), None),
        (Target("::ffff:10.0.0.2", 8000), None),
        (ME, "target-self"),
        (Target("10.0.0.2", 8001), "target-foreign"),
        (Target("10.0.0.2", 22), "target-foreign"),
        (Target("10.0.0.3", 8000), "target-foreign"),
        (Target("169.254.169.254", 80), "target-foreign"),
        (Target("localhost", 8000), "target-foreign"),
        (Target("other", 8000), "target-foreign"),
    ],
)
def test_only_other_members_by_address_and_port_are_targets(
    target: Target, reason: str | None
) -> None:
    allowed = guard().allowed([target], None)
    assert allowed.reason == reason
    assert len(allowed.targets) == (reason is None)


def test_the_address_that_a_request_came_in_at_is_no_target() -> None:
    assert guard().allowed([OTHER], OTHER).reason == "target-self"


def test_the_first_thing_in_the_way_is_the_reason_and_good_targets_stay_in_order() -> None:
    foreign = Target("10.9.9.9", 1)
    assert guard().allowed([foreign, ME], None).reason == "target-foreign"
    assert guard().allowed([SIX, foreign, OTHER], None).targets == (SIX, OTHER)
    assert guard().allowed([], None).reason == "no-targets"


def test_without_a_list_nobody_is_allowed() -> None:
    unknown = Guard("default/me")
    assert unknown.allowed([OTHER], None).reason == "members-unknown"
    assert not unknown.is_member_host("10.0.0.2")


def test_a_new_list_takes_the_place_of_the_old_one() -> None:
    changed = guard()
    changed.replace(parse_entries(b"endpoints: []", "f").entries, 8000)
    assert changed.allowed([OTHER], None).reason == "target-foreign"
    assert len(changed) == 0


def test_another_port_of_this_pod_is_another_member() -> None:
    ranks = Guard("default/me")
    ranks.replace(parse_entries(FILE, "f").entries, 8001)
    assert ranks.allowed([ME], None).targets == (ME,)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:DB8:0::1", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("Pod-A", "pod-a"),
    ],
)
def test_an_address_has_one_spelling(text: str, expected: str) -> None:
    assert address(text) == expected


def caller(**changes: object) -> Caller:
    values: dict[str, object] = {
        "method": "POST",
        "path": "/v1/completions?x=1",
        "claims": (),
        "request_ids": ("leg-1",),
        "at": ME,
        "peer": "10.0.0.2",
    }
    return Caller(**{**values, **changes})  # type: ignore[arg-type]


def signed(door: Door, **changes: object) -> Caller:
    """A leg as a genuine sidecar sends it."""
    plain = caller(**changes)
    leg = Leg(method="POST", path=plain.path, request_id="leg-1", target=str(ME))
    proof = door.proof(leg, 100.0)
    assert proof
    return caller(**{"claims": (proof,), **changes})


def test_a_key_proves_a_leg_and_the_previous_key_does_so_while_it_changes() -> None:
    old = Door(guard=guard(), keys=LegKeys(KEY))
    new = Door(guard=guard(), keys=LegKeys(NEXT, KEY))
    assert new.judge(signed(old), 100.0).is_leg
    assert new.judge(signed(new), 100.0).is_leg
    assert old.judge(signed(new), 100.0).refused == "leg-forged"
    assert new.where(OTHER) == OTHER


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"path": "/v1/chat/completions"}, "leg-forged"),
        ({"request_ids": ("leg-2",)}, "leg-forged"),
        ({"request_ids": ()}, "leg-malformed"),
        ({"request_ids": ("leg-1", "leg-1")}, "leg-malformed"),
        ({"at": OTHER}, "leg-forged"),
        ({"at": None}, "leg-malformed"),
        ({"method": "PUT"}, "leg-forged"),
        ({"claims": ("x",)}, "leg-malformed"),
        ({"claims": ("x", "y")}, "leg-malformed"),
    ],
)
def test_a_proof_serves_nothing_but_its_own_leg(changes: dict[str, object], refused: str) -> None:
    door = Door(guard=guard(), keys=LegKeys(KEY))
    claims = signed(door).claims
    assert door.judge(caller(**{"claims": claims, **changes}), 100.0).refused == refused


def test_a_proof_ends() -> None:
    door = Door(guard=guard(), keys=LegKeys(KEY))
    assert door.judge(signed(door), 100.0 + LIFE_S).is_leg
    assert door.judge(signed(door), 100.0 + LIFE_S + 31).refused == "leg-expired"


def test_a_genuine_leg_to_another_path_is_refused() -> None:
    door = Door(guard=guard(), keys=LegKeys(KEY))
    assert door.judge(signed(door, path="/v1/embeddings"), 100.0).refused == "leg-path"


def test_whoever_claims_nothing_is_a_client() -> None:
    for door in (Door(guard=guard(), keys=LegKeys(KEY)), Door(guard=guard())):
        verdict = door.judge(caller(), 100.0)
        assert (verdict.is_leg, verdict.refused) == (False, None)


def test_with_neither_key_nor_port_no_leg_is_sent_or_taken() -> None:
    door = Door(guard=guard())
    assert door.off == "legs-off"
    assert door.judge(caller(claims=("v1",)), 100.0).refused == "legs-off"


def test_the_leg_port_serves_members_only_and_needs_no_proof() -> None:
    door = Door(guard=guard(), leg_port=9000)
    assert door.judge(caller(on_leg_port=True), 100.0).is_leg
    assert door.judge(caller(on_leg_port=True, peer="::ffff:10.0.0.2"), 100.0).is_leg
    stranger = caller(on_leg_port=True, peer="10.0.0.3")
    assert door.judge(stranger, 100.0).refused == "leg-peer"
    other_path = caller(on_leg_port=True, path="/metrics")
    assert door.judge(other_path, 100.0).refused == "leg-path"
    assert door.proof(Leg(method="", path="", request_id="", target=""), 0.0) is None
    assert door.where(OTHER) == Target("10.0.0.2", 9100)
    assert door.where(SIX) == Target("2001:db8::1", 9000)


def test_a_door_shows_no_key() -> None:
    assert "aaaa" not in repr(Door(guard=guard(), keys=LegKeys(KEY)))
