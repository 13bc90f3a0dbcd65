"""The handoff's rules, one by one; field faults by their number are in tests/faults."""

import pytest

from sidecar.handoff import CLIENT_ERRORS, Handoff, HandoffOrderError
from sidecar.transfer.params import UsedTwiceError
from sidecar.transfer.steps import (
    AbortDecode,
    Arrived,
    CancelPrefill,
    ClientGone,
    CutAnswer,
    DecodeEnded,
    DecodeFailed,
    DecodeFirstByte,
    DrainDecode,
    Ending,
    Event,
    Fallback,
    Fault,
    Finished,
    HandoffPolicy,
    PassThrough,
    PrefillAnswered,
    PrefillFailed,
    Refuse,
    SendDecode,
    SendPrefill,
    TimedOut,
)
from tests.fakes.handoffs import A, B, C, begun, finished, sent_decode, sent_prefill, transfer


def decoding(
    *, pulling: bool = True, streams: bool = False, **policy: object
) -> tuple[Handoff, str]:
    """A handoff whose decode leg is sent and has given no byte."""
    handoff = Handoff(HandoffPolicy(**policy), "r")  # type: ignore[arg-type]
    targets = (A,) if pulling else ()
    actions = handoff.on(Arrived(targets, streams=streams), 0.0)
    if pulling:
        leg = sent_prefill(actions).leg
        actions = handoff.on(PrefillAnswered(leg, transfer(), 1.0), 1.0)
    return handoff, sent_decode(actions).leg


def test_a_prompt_is_prefilled_there_and_decoded_here() -> None:
    handoff = Handoff(HandoffPolicy(prefill_s=7, stream_s=8), "r")
    assert handoff.on(Arrived((A, B), streams=True), 0.0) == [SendPrefill("r-p1", A, 7)]
    params = transfer()
    actions = handoff.on(PrefillAnswered("r-p1", params, 2.0), 2.1)
    assert actions == [SendDecode("r-d1", params, 8, deadline=27.0)]
    assert handoff.on(DecodeFirstByte("r-d1"), 3.0) == []
    assert not handoff.done
    assert handoff.on(DecodeEnded("r-d1"), 4.0) == [
        Finished(ending=Ending.ANSWERED, path="split", prefills=1, decodes=1)
    ]
    assert handoff.done


@pytest.mark.parametrize(
    ("arrived", "path"),
    [(Arrived((A,), unsplittable="n"), "n"), (Arrived(()), "no-targets")],
)
def test_what_cannot_be_split_is_decoded_alone_by_its_reason(arrived: Arrived, path: str) -> None:
    handoff = Handoff(HandoffPolicy(answer_s=9), "r")
    assert handoff.on(arrived, 0.0) == [SendDecode("r-d1", None, 9)]
    assert handoff.on(DecodeEnded("r-d1"), 1.0) == [
        Finished(ending=Ending.ANSWERED, path=path, decodes=1)
    ]


def test_parameters_are_taken_once() -> None:
    params = transfer(b"{}")
    assert not params.used
    assert params.take() == b"{}"
    assert params.used
    with pytest.raises(UsedTwiceError):
        params.take()


# --- a client that leaves


def test_a_client_that_leaves_before_anything_was_sent_costs_nothing() -> None:
    handoff = Handoff(HandoffPolicy(), "r")
    assert handoff.on(ClientGone(), 0.0) == [Finished(ending=Ending.CLIENT_GONE, path="prefill")]


def test_a_client_that_leaves_during_prefill_cancels_it() -> None:
    handoff, leg = begun(A, B)
    assert handoff.on(ClientGone(), 1.0) == [CancelPrefill(leg)]
    assert handoff.on(ClientGone(), 1.0) == []
    assert handoff.on(PrefillFailed(leg, Fault.CANCELLED), 1.0) == [
        Finished(ending=Ending.CLIENT_GONE, path="prefill", prefills=1)
    ]


def test_an_answer_that_beats_the_cancellation_is_pulled_and_aborted() -> None:
    handoff, leg = begun(drain_s=3)
    handoff.on(ClientGone(), 1.0)
    params = transfer()
    actions = handoff.on(PrefillAnswered(leg, params, 1.0), 1.0)
    assert actions == [SendDecode("r-d1", params, 3, deadline=26.0, release=True)]
    assert handoff.on(DecodeFirstByte("r-d1"), 2.0) == [AbortDecode("r-d1")]
    assert finished(handoff.on(DecodeFailed("r-d1", Fault.CANCELLED), 2.0)) == Finished(
        ending=Ending.CLIENT_GONE, path="split", prefills=1, decodes=1
    )


def test_an_answer_without_parameters_needs_no_decode_when_nobody_waits() -> None:
    handoff, leg = begun()
    handoff.on(ClientGone(), 1.0)
    assert finished(handoff.on(PrefillAnswered(leg, None, 1.0), 1.0)).decodes == 0


def test_a_client_that_leaves_before_the_first_byte_lets_the_pull_go_on_for_a_while() -> None:
    handoff, leg = decoding(drain_s=4)
    assert handoff.on(ClientGone(), 2.0) == [DrainDecode(leg, 4)]
    assert handoff.on(TimedOut(leg), 6.0) == [AbortDecode(leg)]
    assert handoff.on(TimedOut(leg), 6.0) == []
    assert finished(handoff.on(DecodeFailed(leg, Fault.CANCELLED), 6.0)).ending == "client-gone"


def test_a_decode_leg_that_pulls_nothing_is_aborted_at_once() -> None:
    handoff, leg = decoding(pulling=False)
    assert handoff.on(ClientGone(), 2.0) == [AbortDecode(leg)]
    assert finished(handoff.on(DecodeEnded(leg), 2.0)).ending is Ending.CLIENT_GONE


def test_a_client_that_leaves_during_its_answer_aborts_it() -> None:
    handoff, leg = decoding()
    handoff.on(DecodeFirstByte(leg), 2.0)
    assert handoff.on(ClientGone(), 3.0) == [AbortDecode(leg)]
    assert finished(handoff.on(DecodeFailed(leg, Fault.LOST), 3.0)).ending is Ending.CLIENT_GONE


def test_a_client_that_leaves_while_a_slow_leg_is_stopped_changes_no_action() -> None:
    handoff, leg = decoding()
    assert handoff.on(TimedOut(leg), 900.0) == [AbortDecode(leg)]
    assert handoff.on(ClientGone(), 900.0) == []
    assert handoff.on(DecodeFirstByte(leg), 900.0) == []
    assert finished(handoff.on(DecodeEnded(leg), 900.0)).ending is Ending.CLIENT_GONE


# --- the lease


def test_parameters_go_out_at_the_very_deadline() -> None:
    handoff, leg = begun(lease_s=10, margin_s=2)
    assert sent_decode(handoff.on(PrefillAnswered(leg, transfer(), 1.0), 9.0)).transfer


def test_late_parameters_are_stranded_and_the_prompt_is_prefilled_anew_once() -> None:
    handoff, leg = begun(A, B, lease_s=10, margin_s=2)
    again = sent_prefill(handoff.on(PrefillAnswered(leg, transfer(), 1.0), 9.1))
    assert (again.leg, again.target) == ("r-p2", A)
    decode = sent_decode(handoff.on(PrefillAnswered("r-p2", transfer(), 10.0), 30.0))
    assert decode.transfer is None
    assert finished(handoff.on(DecodeEnded(decode.leg), 31.0)) == Finished(
        ending=Ending.ANSWERED,
        path="lease-over",
        stranded=("lease-over", "lease-over"),
        prefills=2,
        decodes=1,
    )


def test_late_parameters_of_a_client_that_left_are_never_sent() -> None:
    handoff, leg = begun()
    handoff.on(ClientGone(), 1.0)
    done = finished(handoff.on(PrefillAnswered(leg, transfer(), 1.0), 99.0))
    assert (done.ending, done.stranded, done.decodes) == ("client-gone", ("lease-over",), 0)


def test_a_decode_leg_that_missed_its_deadline_leads_to_a_fresh_prefill() -> None:
    handoff, leg = decoding()
    assert sent_prefill(handoff.on(DecodeFailed(leg, Fault.LATE), 40.0)).leg == "r-p2"
    leg = sent_decode(handoff.on(PrefillAnswered("r-p2", transfer(), 41.0), 41.0)).leg
    assert leg == "r-d2"
    assert finished(handoff.on(DecodeEnded(leg), 42.0)).stranded == ("lease-over",)


# --- failures of the prefill leg


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.GARBLED, Fault.CONNECT, Fault.STATUS])
def test_a_failed_prefill_is_recomputed_by_default(fault: Fault) -> None:
    handoff, leg = begun()
    decode = sent_decode(handoff.on(PrefillFailed(leg, fault, 503), 1.0))
    done = finished(handoff.on(DecodeEnded(decode.leg), 2.0))
    assert (done.path, done.copies) == (f"prefill-{fault.value}", 0)


@pytest.mark.parametrize(
    ("fault", "answer"),
    [
        (Fault.CONNECT, Refuse(503, "prefill-unreachable")),
        (Fault.LOST, Refuse(502, "prefill-lost")),
        (Fault.GARBLED, Refuse(502, "prefill-garbled")),
        (Fault.CANCELLED, Refuse(504, "prefill-timeout")),
        (Fault.STATUS, PassThrough("r-p1")),
    ],
)
def test_a_failed_prefill_is_the_clients_answer_where_policy_says_so(
    fault: Fault, answer: object
) -> None:
    handoff, leg = begun(on_prefill_failure=Fallback.FAIL)
    actions = handoff.on(PrefillFailed(leg, fault, 503), 1.0)
    assert actions[0] == answer
    assert finished(actions).path == "prefill"


def test_a_slow_prefill_is_cancelled_and_its_late_answer_still_used() -> None:
    handoff, leg = begun(A, B)
    assert handoff.on(TimedOut(leg), 120.0) == [CancelPrefill(leg)]
    assert sent_decode(handoff.on(PrefillAnswered(leg, transfer(), 120.0), 120.0)).transfer


def test_a_slow_prefill_leads_to_another_and_counts_as_a_copy() -> None:
    handoff, leg = begun(A, B, C)
    handoff.on(TimedOut(leg), 120.0)
    second = sent_prefill(handoff.on(PrefillFailed(leg, Fault.CANCELLED), 120.0))
    assert second.target == B
    handoff.on(TimedOut(second.leg), 240.0)
    decode = sent_decode(handoff.on(PrefillFailed(second.leg, Fault.CANCELLED), 240.0))
    done = finished(handoff.on(DecodeEnded(decode.leg), 241.0))
    assert (done.path, done.copies, done.prefills) == ("prefill-timeout", 1, 2)


def test_a_limit_of_a_leg_that_has_moved_on_is_harmless() -> None:
    handoff, leg = decoding()
    assert handoff.on(TimedOut("r-p1"), 200.0) == []
    handoff.on(DecodeFirstByte(leg), 201.0)
    assert handoff.on(TimedOut(leg), 900.0) == []
    handoff.on(DecodeEnded(leg), 901.0)
    assert handoff.on(TimedOut(leg), 902.0) == []
    assert handoff.on(ClientGone(), 902.0) == []


# --- failures of the decode leg


@pytest.mark.parametrize(
    ("fault", "status", "answer", "stranded"),
    [
        (Fault.CONNECT, 0, Refuse(503, "engine-absent"), ("decode-unreachable",)),
        (Fault.STATUS, 400, PassThrough("r-d1"), ("decode-rejected",)),
        (Fault.STATUS, 429, PassThrough("r-d1"), ("decode-rejected",)),
    ],
)
def test_what_no_recompute_would_mend_is_the_clients_answer(
    fault: Fault, status: int, answer: object, stranded: tuple[str, ...]
) -> None:
    handoff, leg = decoding()
    actions = handoff.on(DecodeFailed(leg, fault, status), 1.0)
    assert actions[0] == answer
    assert finished(actions).stranded == stranded


@pytest.mark.parametrize(
    ("fault", "answer"),
    [
        (Fault.CONNECT, Refuse(503, "engine-absent")),
        (Fault.LOST, Refuse(502, "engine-lost")),
        (Fault.GARBLED, Refuse(502, "engine-garbled")),
        (Fault.CANCELLED, Refuse(504, "engine-silent")),
        (Fault.STATUS, PassThrough("r-d1")),
        (Fault.ERROR_EVENT, PassThrough("r-d1")),
    ],
)
def test_a_plain_decode_that_fails_is_not_repeated(fault: Fault, answer: object) -> None:
    handoff, leg = decoding(pulling=False)
    actions = handoff.on(DecodeFailed(leg, fault, 500), 1.0)
    assert actions[0] == answer
    assert finished(actions).stranded == ()


def test_a_decode_that_ends_just_when_its_time_is_over_is_a_timeout() -> None:
    handoff, leg = decoding(pulling=False)
    handoff.on(TimedOut(leg), 900.0)
    assert handoff.on(DecodeEnded(leg), 900.0)[0] == Refuse(504, "engine-silent")


def test_an_answer_that_breaks_off_is_cut_and_never_repeated() -> None:
    handoff, leg = decoding()
    handoff.on(DecodeFirstByte(leg), 1.0)
    actions = handoff.on(DecodeFailed(leg, Fault.LOST), 2.0)
    assert actions[0] == CutAnswer()
    assert finished(actions).ending is Ending.CUT


# --- limits and order


def test_a_prefill_gets_half_of_what_is_left_at_most() -> None:
    policy = HandoffPolicy(prefill_s=10.0)
    for left_s, prefill_s in ((None, 10.0), (20.0, 10.0), (19.0, 9.5), (0.001, 0.0005), (0.0, 10)):
        assert policy.within(left_s).prefill_s == prefill_s
    assert policy.within(5.0).answer_s == policy.answer_s


@pytest.mark.parametrize(
    "wrong",
    [
        {"prefill_s": 0.0},
        {"stream_s": float("inf")},
        {"answer_s": float("nan")},
        {"drain_s": -1.0},
        {"margin_s": 0.0},
        {"margin_s": 30.0},
        {"prefill_retries": 2},
        {"prefill_retries": -1},
    ],
)
def test_a_policy_without_limits_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"limit|margin_s|prefill_retries"):
        HandoffPolicy(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "event",
    [
        Arrived(),
        PrefillAnswered("r-p2", transfer(), 0.0),
        PrefillFailed("other", Fault.LOST),
        DecodeFirstByte("r-d1"),
        DecodeEnded("r-d1"),
        DecodeFailed("r-d1", Fault.LOST),
    ],
)
def test_events_that_cannot_happen_are_a_fault_of_ours(event: Event) -> None:
    handoff, _ = begun()
    with pytest.raises(HandoffOrderError, match="PREFILLING"):
        handoff.on(event, 1.0)


def test_events_of_other_legs_cannot_happen_while_decoding() -> None:
    handoff, _ = decoding()
    for event in (DecodeFirstByte("x"), DecodeEnded("x"), DecodeFailed("x", Fault.LOST)):
        with pytest.raises(HandoffOrderError, match="DECODING"):
            handoff.on(event, 1.0)


def test_statuses_of_the_client_are_the_documented_ones() -> None:
    assert sorted(CLIENT_ERRORS) == [400, 401, 403, 404, 413, 422]
