"""The picker seals the pods that it names to the destination's sidecar."""

from epp import protocol
from epp.framework import Role
from epp.request.sealing import Sealer
from epp.seals import Named, SealKeys
from tests.fakes.desk import ask, open_desk

TOKENS = list(range(1000))
KEYS = SealKeys(b"k" * 32)


def sealer() -> Sealer:
    return Sealer("default/pool", KEYS, wall_s=lambda: 1000.0, life_s=90.0)


async def test_a_split_decision_seals_its_candidates_under_its_own_id() -> None:
    async with open_desk(roles=[Role.DECODE, Role.PREFILL, Role.PREFILL], sealer=sealer()) as desk:
        told = dict((await desk.route(ask(TOKENS))).set_headers)
    named = Named(
        pool="default/pool",
        decision_id=told[protocol.DECISION_ID],
        prefill=told[protocol.PREFILLER],
    )
    assert KEYS.error(told[protocol.HANDOFF], named, 1000.0 + 90.0) is None
    assert ";exp=1090;" in told[protocol.HANDOFF]


async def test_a_decision_that_names_nobody_has_no_seal() -> None:
    async with open_desk(2, sealer=sealer()) as desk:
        told = dict((await desk.route(ask(TOKENS))).set_headers)
    assert protocol.HANDOFF not in told


async def test_without_a_key_nothing_is_sealed() -> None:
    async with open_desk(roles=[Role.DECODE, Role.PREFILL]) as desk:
        told = dict((await desk.route(ask(TOKENS))).set_headers)
    assert protocol.PREFILLER in told
    assert protocol.HANDOFF not in told


def test_a_new_key_seals_from_then_on() -> None:
    told = {protocol.DECISION_ID: "d", protocol.ENCODERS: "10.0.0.1:1"}
    named = Named(pool="default/pool", decision_id="d", encode="10.0.0.1:1")
    one = sealer()
    one.keys = SealKeys(b"n" * 32, b"k" * 32)
    ((_, seal),) = one.header(told)
    assert KEYS.error(seal, named, 1000.0) == "seal-key-unknown"
    assert SealKeys(b"n" * 32).error(seal, named, 1000.0) is None
