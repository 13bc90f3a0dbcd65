"""What plans refuse, and what their names and ports are made of. Whole bodies: fault D01."""

import json
from typing import Any

import pytest

from epp.bodies.sharing import Api
from epp.bodies.spans import Body
from sidecar.connectors import CONNECTORS, Connector, Meeting, NoMeetingError, Ports, plan_of
from sidecar.settings import SidecarSettings
from sidecar.transfer.openings import MAX_HELD, Opening, Verdict
from sidecar.transfer.params import Transfer
from sidecar.transfer.steps import Fallback
from sidecar.transfer.targets import Target

AT = Target("10.0.0.1", 8002)
PORTS = Ports(sidecar=8000, ranks=4, bootstrap=8998, p2p=7777)
BODY = Body.read(b'{"prompt":"x","max_tokens":9}')


def taken(transfer: Transfer | None) -> Any:
    assert transfer is not None
    return json.loads(transfer.take())


def test_a_members_port_tells_its_rank_and_other_ports_none() -> None:
    assert [PORTS.rank_of(Target("h", port)) for port in (8000, 8003, 8004, 7999)] == [0, 3, 0, 0]


@pytest.mark.parametrize("connector", CONNECTORS)
def test_two_requests_never_meet_under_one_name(connector: Connector) -> None:
    plan = plan_of(connector, PORTS)
    told = b'{"2":{"engine_id":"e"}}'
    legs = [Meeting(leg=f"leg-{number}-p1", target=AT, told=told) for number in range(200)]
    if plan.together:
        offers = {json.dumps(taken(plan.pairing(leg))) for leg in legs}
        assert len(offers) == len(legs)
        assert len({plan.prefill(BODY, Api.COMPLETIONS, leg) for leg in legs}) == len(legs)
    elif connector == "offloading":
        assert len({json.dumps(taken(plan.read(b"{}", leg).transfer)) for leg in legs}) == 200
    else:
        assert len({plan.prefill(BODY, Api.COMPLETIONS, leg) for leg in legs}) == 1


def test_a_rank_is_met_at_its_own_engine_and_port() -> None:
    told = b'{"0":{"engine_id":"e0"},"2":{"engine_id":"e2"}}'
    meeting = Meeting(leg="l", target=AT, told=told)
    met = taken(plan_of("mooncake", PORTS).pairing(meeting))
    assert met["remote_engine_id"] == "e2"
    assert met["remote_bootstrap_addr"] == "http://10.0.0.1:8998"
    offered = taken(plan_of("offloading", PORTS).read(b"{}", meeting).transfer)
    assert offered["remote_prefiller"]["remote_port"] == 7779


def test_an_ipv6_bootstrap_server_stands_in_brackets() -> None:
    meeting = Meeting(leg="l", target=Target("fd00::2", 8000), told=b'{"0":{"engine_id":"e"}}')
    met = taken(plan_of("mooncake", PORTS).pairing(meeting))
    assert met["remote_bootstrap_addr"] == "http://[fd00::2]:8998"


@pytest.mark.parametrize(
    "told",
    [
        b"",
        b"nope",
        b"[]",
        b"{}",
        b'{"2":{}}',
        b'{"2":{"engine_id":""}}',
        b'{"0":{"engine_id":"e"}}',
    ],
)
def test_a_bootstrap_server_that_knows_no_such_rank_is_of_no_use(told: bytes) -> None:
    with pytest.raises(NoMeetingError):
        plan_of("mooncake", PORTS).pairing(Meeting(leg="l", target=AT, told=told))


def test_legs_that_follow_each_other_do_not_meet() -> None:
    with pytest.raises(NoMeetingError):
        plan_of("nixlv2", PORTS).pairing(Meeting(leg="l", target=AT))


@pytest.mark.parametrize("connector", ["offloading", "shared-storage"])
def test_an_answer_that_is_no_object_offers_nothing(connector: Connector) -> None:
    read = plan_of(connector, PORTS).read(b"data: {}\n\n", Meeting(leg="l", target=AT))
    assert (read.transfer, read.missing) == (None, "not-json")


@pytest.mark.parametrize(
    ("connector", "body", "error"),
    [
        ("sglang", '{"bootstrap_host":"h","bootstrap_port":1}', "params-not-single"),
        (
            "sglang",
            '{"bootstrap_host":"h","bootstrap_port":1,"bootstrap_room":"1"}',
            "params-no-room",
        ),
        ("sglang", '{"bootstrap_host":"","bootstrap_port":1,"bootstrap_room":1}', "params-no-room"),
        ("mooncake", '{"kv_transfer_params":{"do_remote_decode":true}}', "params-no-transfer"),
        (
            "mooncake",
            '{"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,'
            '"transfer_id":"x"}}',
            "params-pull",
        ),
        ("offloading", '{"kv_transfer_params":{}}', "params-no-transfer"),
        ("offloading", '{"kv_transfer_params":[]}', "params-not-an-object"),
        (
            "offloading",
            '{"kv_transfer_params":{"remote_decoder":{"kv_request_id":"x"},"remote_kv_source":{}}}',
            "params-remote",
        ),
        (
            "offloading",
            '{"kv_transfer_params":{"remote_decoder":{"kv_request_id":"x"},"remote_kv_source":'
            '{"kv_request_id":"","remote_host":"h","remote_port":1}}}',
            "params-remote",
        ),
        (
            "offloading",
            '{"kv_transfer_params":{"remote_kv_source":{"kv_request_id":"x"}}}',
            "params-no-transfer",
        ),
        ("shared-storage", '{"kv_transfer_params":null}', "params-not-single"),
        ("shared-storage", '{"vllm_xargs":{"bootstrap_room":1}}', "params-nested"),
    ],
)
def test_a_leg_that_says_more_or_less_than_its_plan_is_refused(
    connector: Connector, body: str, error: str
) -> None:
    assert plan_of(connector, PORTS).leg_error(body.encode()) == error


SOURCE = Target("10.0.0.9", 8001)


def test_whoever_computes_a_prompt_may_fetch_from_the_source() -> None:
    plan = plan_of("offloading", PORTS)
    source = {"kv_request_id": "l", "remote_host": "10.0.0.9", "remote_port": 7778}
    leg = plan.prefill(BODY, Api.COMPLETIONS, Meeting(leg="l", target=AT, source=SOURCE))
    assert json.loads(leg)["kv_transfer_params"] == {
        "remote_decoder": {"kv_request_id": "l"},
        "remote_kv_source": source,
    }
    assert plan.leg_error(leg) is None
    alone = plan.fetching(BODY, Meeting(leg="l", target=SOURCE))
    assert alone is not None
    assert json.loads(alone)["kv_transfer_params"] == {"remote_kv_source": source}
    assert plan.leg_error(alone) is not None, "it is no prefill leg"


@pytest.mark.parametrize("connector", [one for one in CONNECTORS if one != "offloading"])
def test_engines_of_other_kinds_fetch_from_no_third_pod(connector: Connector) -> None:
    plan = plan_of(connector, PORTS)
    meeting = Meeting(leg="l", target=AT, told=b'{"2":{"engine_id":"e"}}')
    with_source = Meeting(leg="l", target=AT, told=meeting.told, source=SOURCE)
    assert plan.fetching(BODY, Meeting(leg="l", target=SOURCE)) is None
    assert plan.prefill(BODY, Api.CHAT, with_source) == plan.prefill(BODY, Api.CHAT, meeting)


def test_what_an_encoder_said_may_stand_on_a_leg() -> None:
    assert plan_of("shared-storage", PORTS).leg_error(b'{"ec_transfer_params":{"h":{}}}') is None


def test_thinking_leaves_a_release_leg_its_room() -> None:
    thinking = b'{"max_tokens":2048,"messages":[],"thinking":{"type":"enabled"},"stream":false}'
    sent = json.loads(plan_of("nixlv2", PORTS).release(Body.read(thinking), Api.MESSAGES, b"{}"))
    assert (sent["max_tokens"], sent["stream"]) == (2048, True)


@pytest.mark.parametrize("connector", CONNECTORS)
def test_sglang_fails_where_others_compute_unless_it_is_said(connector: Connector) -> None:
    def policy(**more: Any) -> list[Fallback]:
        settings = SidecarSettings.model_validate(
            {"pool": "d/p", "name": "d/e", "connector": connector, **more}
        )
        return [settings.handoff_policy.on_prefill_failure, settings.handoff_policy.on_pull_failure]

    usual = Fallback.FAIL if connector == "sglang" else Fallback.RECOMPUTE
    assert policy() == [usual, usual]
    assert policy(on_prefill_failure="recompute", on_pull_failure="fail") == [
        Fallback.RECOMPUTE,
        Fallback.FAIL,
    ]


# --- how answers begin


def opened(*pieces: bytes, kind: str = "text/event-stream", probe: bool = False) -> Verdict:
    opening = Opening(kind, probe=probe)
    for piece in pieces:
        opening.feed(piece)
    return opening.finish()


def event(data: bytes, name: bytes = b"") -> bytes:
    return (b"event: " + name + b"\n" if name else b"") + b"data: " + data + b"\n\n"


@pytest.mark.parametrize(
    "announcing",
    [
        [
            b'{"type":"message_start","message":{}}',
            b'{"type":"ping"}',
            b'{"type":"content_block_start"}',
        ],
        [b'{"type":"response.created","response":{}}', b'{"type":"response.in_progress"}'],
    ],
)
def test_events_that_announce_an_answer_decide_nothing(announcing: list[bytes]) -> None:
    begun = [event(one) for one in announcing]
    assert (
        opened(*begun, event(b'{"type":"error","error":{"message":"kv"}}')) is Verdict.ERROR_EVENT
    )
    assert opened(*begun, event(b'{"type":"response.failed"}')) is Verdict.ERROR_EVENT
    assert opened(*begun, event(b'{"type":"content_block_delta"}')) is Verdict.GOOD
    assert opened(*begun) is Verdict.GOOD


COLD = b'{"choices":[{"index":0,"delta":{},"finish_reason":"cache_threshold"}]}'


def test_a_cold_engine_is_heard_in_a_stream_and_in_json() -> None:
    assert opened(event(COLD), b"data: [DONE]\n\n", probe=True) is Verdict.COLD
    for at in (1, 20, len(COLD)):
        pieces = (COLD[:at], COLD[at:])
        assert opened(*pieces, kind="application/json", probe=True) is Verdict.COLD
    assert opened(COLD, kind="application/json") is Verdict.GOOD
    warm = COLD.replace(b"cache_threshold", b"stop")
    assert opened(warm, kind="application/json", probe=True) is Verdict.GOOD


def test_a_long_answer_is_no_refusal_and_is_not_held_to_its_end() -> None:
    opening = Opening("application/json", probe=True)
    assert opening.feed(b" " * MAX_HELD) is Verdict.UNDECIDED
    assert opening.feed(b" ") is Verdict.GOOD
