"""Field faults of the handoff (group D), in its pure parts. Over sockets: the relay's own tests.

Each docstring names what protects; every one of these was seen red with that disabled.
"""

import json
from typing import Any

import pytest

from epp.bodies.sharing import Api
from epp.bodies.spans import Body
from sidecar.bodies import splittable
from sidecar.connectors import CONNECTORS, Connector, Meeting, Plan, Ports, plan_of
from sidecar.connectors.nixlv2 import NixlV2
from sidecar.handoff import Handoff
from sidecar.transfer.answers import answer_filter
from sidecar.transfer.params import UsedTwiceError, cleaned, read_answer
from sidecar.transfer.redaction import IN_ANSWER_NAMES, NAME
from sidecar.transfer.steps import (
    AbortDecode,
    Arrived,
    DecodeEnded,
    DecodeFailed,
    Fallback,
    Fault,
    HandoffPolicy,
    PassThrough,
    PrefillAnswered,
    PrefillFailed,
    TimedOut,
)
from sidecar.transfer.targets import Target, parse
from tests.fakes.handoffs import (
    A,
    B,
    C,
    begun,
    finished,
    recorded,
    rows,
    sent_decode,
    sent_prefill,
    transfer,
)

PLAN = NixlV2()
MEETING = Meeting(leg="r-p1", target=A)
PLANNED = rows("d01_plans.jsonl")
BOOTSTRAP_ANSWER = b'{"0":{"engine_id":"engine-7","worker_addr":{"0":"tcp://10.0.0.1:1"}}}'
PARAMS = b'{"do_remote_prefill":true,"remote_block_ids":[[1]],"new":18446744073709551616}'


def compact(body: object) -> bytes:
    """As vLLM writes it."""
    return json.dumps(body, separators=(",", ":")).encode()


@pytest.mark.parametrize("row", rows("d01_legs.jsonl"), ids=lambda row: row["name"])
def test_D01_each_leg_has_its_shape_and_decode_gets_the_clients_bytes(row: dict[str, Any]) -> None:
    """Protected by `bodies.SHAPES`, `bodies.one_token` and `Body.edited`.

    Red when `min_tokens` stays, when one of the two limits is left out, and when the decode leg is
    encoded anew from a parsed body.
    """
    body = Body.read(row["client"].encode())
    api = Api(row["api"])
    assert PLAN.prefill(body, api, MEETING) == row["prefill"].encode()
    decode = PLAN.decode(body, api, PARAMS)
    assert decode == row["client"][:-1].encode() + b',"kv_transfer_params":' + PARAMS + b"}"
    assert cleaned(decode) == row["client"].encode()


@pytest.mark.parametrize("api", Api)
@pytest.mark.parametrize("connector", [name for name in CONNECTORS if name != "nixlv2"])
def test_D01_every_connector_writes_its_own_legs_in_every_api(
    connector: Connector, api: Api
) -> None:
    """Protected by the plans in `sidecar.connectors` and by `bodies.SHAPES`.

    Red when SGLang's prefill leg is limited to one token, when Mooncake's decode leg names another
    engine, when an offloading leg carries NIXL's parameters, and when a threshold stays.
    """
    plan = plan_of(connector, Ports())
    mine = [row for row in PLANNED if (row["connector"], row["api"]) == (connector, api)]
    every = {row["name"] for row in rows("d01_legs.jsonl") if row["api"] == api}
    assert {row["name"] for row in mine} >= every
    for row in mine:
        name, body = row["name"], Body.read(row["client"].encode())
        reason = plan.unsplittable(body, api)
        assert reason == row.get("unsplittable"), name
        if reason is None:
            _check_legs(plan, api, body, row)


def _check_legs(plan: Plan, api: Api, body: Body, row: dict[str, Any]) -> None:
    name = row["name"]
    prefill, decode, alone = (row[leg].encode() for leg in ("prefill", "decode", "alone"))
    meeting = Meeting(leg="r-p1", target=Target("10.0.0.1", 8000), told=BOOTSTRAP_ANSWER)
    assert plan.prefill(body, api, meeting) == prefill, name
    assert plan.leg_error(prefill) is None, name
    offered = plan.pairing(meeting) if plan.together else plan.read(b"{}", meeting).transfer
    assert offered, name
    assert plan.decode(body, api, offered.take()) == decode, name
    assert plan.alone(body, api) == alone, name
    if NAME.encode() in decode:
        assert plan.leg_error(decode) is not None, f"{name}: a leg may never pull"


@pytest.mark.parametrize("row", rows("d02_splittable.jsonl"), ids=lambda row: row["name"])
def test_D02_what_needs_more_than_one_plain_continuation_is_not_split(row: dict[str, Any]) -> None:
    """Protected by `bodies.splittable`. Red when any one of its checks always holds."""
    assert splittable(Body.read(row["body"].encode()), Api(row["api"])) == row["reason"]


@pytest.mark.parametrize("row", rows("d03_legs.jsonl"), ids=lambda row: row["name"])
def test_D03_whatever_shapes_the_prompt_is_the_same_on_both_legs(row: dict[str, Any]) -> None:
    """Protected by `Body.edited`. Red when `tools` is among the dropped members."""
    body, api = Body.read(row["client"].encode()), Api(row["api"])
    assert PLAN.prefill(body, api, MEETING) == row["prefill"].encode()


def test_D05_a_prefill_that_ended_by_itself_is_decoded_without_its_kv_at_once() -> None:
    """Protected by `params._transfer` and rule 6. Red when null parameters count as parameters."""
    body = {"choices": [{"finish_reason": "stop"}], NAME: None}
    answer = PLAN.read(json.dumps(body).encode(), MEETING)
    assert (answer.transfer, answer.missing, answer.finish_reason) == (None, "no-params", "stop")
    handoff, leg = begun(A, B)
    actions = handoff.on(PrefillAnswered(leg, answer.transfer, 1.0, answer.missing), 1.0)
    decode = sent_decode(actions)
    assert decode.transfer is None
    assert finished(handoff.on(DecodeEnded(decode.leg), 2.0)).path == "no-params"


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
def test_D06_the_clients_own_error_is_passed_once(status: int) -> None:
    """Protected by `handoff.CLIENT_ERRORS`. Red when the set is empty."""
    handoff, leg = begun(A, B)
    actions = handoff.on(PrefillFailed(leg, Fault.STATUS, status), 1.0)
    assert actions[0] == PassThrough(leg)
    assert finished(actions).prefills == 1


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
@pytest.mark.parametrize("policy", Fallback)
def test_D06_other_errors_go_to_the_next_candidate_and_then_by_policy(
    status: int, policy: Fallback
) -> None:
    """Protected by `Handoff._prefill_failed`. Red when candidates or policy are ignored."""
    handoff, leg = begun(A, B, C, on_prefill_failure=policy)
    second = sent_prefill(handoff.on(PrefillFailed(leg, Fault.STATUS, status), 1.0))
    assert second.target == B
    actions = handoff.on(PrefillFailed(second.leg, Fault.STATUS, status), 2.0)
    if policy is Fallback.FAIL:
        assert actions[0] == PassThrough(second.leg)
        return
    decode = sent_decode(actions)
    done = finished(handoff.on(DecodeEnded(decode.leg), 3.0))
    assert (done.path, done.prefills, done.copies) == ("prefill-status", 2, 0)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"<html>", "not-json"),
        (b"data: {}\n\n", "not-json"),
        (b"[]", "not-json"),
        (b"{}", "no-params"),
        (b'{"kv_transfer_params":{}}', "incomplete-params"),
    ],
)
def test_D06_a_200_without_parameters_is_recomputed_by_its_reason(
    answer: bytes, reason: str
) -> None:
    """Protected by `params.read_answer` and rule 6. Red when `missing` is left out of the path."""
    read = read_answer(answer)
    handoff, leg = begun(A, B)
    decode = sent_decode(handoff.on(PrefillAnswered(leg, read.transfer, 1.0, read.missing), 1.0))
    done = finished(handoff.on(DecodeEnded(decode.leg), 2.0))
    assert (done.path, done.prefills) == (reason, 1)


def test_D09_only_a_refused_connection_may_be_tried_again_freely() -> None:
    """Protected by `prefill_retries` and `_UNKNOWN_FATE`. Red when every failure is free."""
    handoff, leg = begun(A, B, C)
    for target in (B, C):
        sent = sent_prefill(handoff.on(PrefillFailed(leg, Fault.CONNECT), 1.0))
        assert sent.target == target
        leg = sent.leg
    decode = sent_decode(handoff.on(PrefillFailed(leg, Fault.CONNECT), 1.0))
    assert finished(handoff.on(DecodeEnded(decode.leg), 2.0)).copies == 0

    handoff, leg = begun(A, B, C)
    leg = sent_prefill(handoff.on(PrefillFailed(leg, Fault.LOST), 1.0)).leg
    decode = sent_decode(handoff.on(PrefillFailed(leg, Fault.LOST), 2.0))
    done = finished(handoff.on(DecodeEnded(decode.leg), 3.0))
    assert (done.prefills, done.copies, done.path) == (2, 1, "prefill-lost")


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (Fault.STATUS, 500),
        (Fault.ERROR_EVENT, 200),
        (Fault.LOST, 0),
        (Fault.GARBLED, 0),
        (Fault.CANCELLED, 0),
    ],
)
def test_D10_a_failed_pull_is_computed_here_once(fault: Fault, status: int) -> None:
    """Protected by `Handoff._may_repeat`. Red when it is always False (502/500 to the client) and
    when it does not look at `_pulling` (repeated without end)."""
    handoff, leg = begun()
    leg = sent_decode(handoff.on(PrefillAnswered(leg, transfer(), 1.0), 1.0)).leg
    if fault is Fault.CANCELLED:  # hangs: the limit is over
        assert handoff.on(TimedOut(leg), 901.0) == [AbortDecode(leg)]
    again = sent_decode(handoff.on(DecodeFailed(leg, fault, status), 2.0))
    assert (again.transfer, again.leg != leg) == (None, True)
    actions = handoff.on(DecodeFailed(again.leg, Fault.STATUS, 500), 3.0)
    assert actions[0] == PassThrough(again.leg)
    assert finished(actions).path.startswith("pull-")


def test_D10_policy_may_forbid_to_compute_here() -> None:
    """Protected by `Handoff._may_repeat`. Red when it does not look at `on_pull_failure`."""
    handoff, leg = begun(on_pull_failure=Fallback.FAIL)
    leg = sent_decode(handoff.on(PrefillAnswered(leg, transfer(), 1.0), 1.0)).leg
    assert handoff.on(DecodeFailed(leg, Fault.ERROR_EVENT), 2.0)[0] == PassThrough(leg)


def test_D11_parameters_are_the_ones_just_given_and_serve_one_leg() -> None:
    """Protected by `Transfer.take` and by `Handoff`, which keeps none. Red when `take` keeps the
    text."""
    first, second = (json.dumps(body).encode() for body in recorded("prefill")[:2])
    for answer in (first, second):
        handoff = Handoff(HandoffPolicy(), "r")
        leg = sent_prefill(handoff.on(Arrived((A,)), 0.0)).leg
        given = read_answer(answer).transfer
        used = sent_decode(handoff.on(PrefillAnswered(leg, given, 1.0), 1.0)).transfer
        assert used
        assert json.loads(used.take()) == json.loads(answer)[NAME]
        with pytest.raises(UsedTwiceError):
            used.take()


@pytest.mark.parametrize("size", [1, 3, 64, 100_000])
@pytest.mark.parametrize("body", recorded("decode") + recorded("prefill"), ids=lambda b: b["id"])
def test_D13_no_answer_shows_the_parameters(body: dict[str, Any], size: int) -> None:
    """Protected by `answers.answer_filter`. Red when it makes nothing for JSON."""
    text = compact(body)
    rest = compact({name: value for name, value in body.items() if name not in IN_ANSWER_NAMES})
    event = b"data: " + text + b"\n\ndata: [DONE]\n\n"
    for kind, whole, expected in (
        ("application/json", text, rest),
        (
            "text/event-stream; charset=utf-8",
            event,
            b"data: " + rest + b"\n\ndata: [DONE]\n\n",
        ),
    ):
        make = answer_filter(kind, "identity")
        assert make is not None
        content = make()
        pieces = (whole[at : at + size] for at in range(0, len(whole), size))
        assert b"".join([*map(content.feed, pieces), content.finish()]) == expected


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (["a:1,b:2"], ["a:1", "b:2"]),
        ([" a:1 ,\tb:2 "], ["a:1", "b:2"]),
        (["a:1,,b:2,"], ["a:1", "b:2"]),
        (["a:1", "b:2"], ["a:1", "b:2"]),
        (["[2001:db8::1]:8000"], ["[2001:db8::1]:8000"]),
        (["2001:db8::1:8000"], []),
        (["a"], []),
        (["a:"], []),
        ([""], []),
        ([], []),
        (["http://a:1"], []),
    ],
)
def test_D28_a_list_of_prefillers_is_read_or_left_never_a_crash(
    header: list[str], found: list[str]
) -> None:
    """Protected by `targets.parse`. Red when items are split at the first colon."""
    targets = parse(header)
    assert [str(target) for target in targets.found] == found
    handoff = Handoff(HandoffPolicy(), "r")
    actions = handoff.on(Arrived(targets.found, targets.reason), 0.0)
    if found:
        assert str(sent_prefill(actions).target) == found[0]
    else:
        assert sent_decode(actions).transfer is None


def test_D28_the_first_reachable_one_is_used() -> None:
    """Protected by `Handoff._prefill_failed`. Red when candidates are ignored."""
    handoff = Handoff(HandoffPolicy(), "r")
    leg = sent_prefill(handoff.on(Arrived(parse(["a:1,b:2"]).found), 0.0)).leg
    second = sent_prefill(handoff.on(PrefillFailed(leg, Fault.CONNECT), 0.1))
    assert str(second.target) == "b:2"
