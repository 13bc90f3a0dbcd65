"""What a handoff adds to the metrics, step by step."""

import pytest
from prometheus_client import CollectorRegistry

from sidecar.declared import PREFIX, Declared
from sidecar.transfer.metrics import HandoffMetrics
from sidecar.transfer.params import Transfer
from sidecar.transfer.steps import (
    DecodeEnded,
    DecodeFailed,
    Ending,
    Fault,
    Finished,
    PrefillAnswered,
    PrefillFailed,
    SendDecode,
    SendPrefill,
)
from sidecar.transfer.tally import Tally
from sidecar.transfer.targets import Target

POD = Target("10.0.0.1", 8000)


class Page:
    """The metrics of one handoff at a clock that a test sets."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.now = 0.0
        self.tally = Tally(HandoffMetrics(Declared(self.registry)), lambda: self.now)

    def value(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(PREFIX + name, labels) or 0.0

    def prefill(self, leg: str = "p1") -> None:
        self.tally.begins(SendPrefill(leg, POD, 1.0))

    def decode(self, transfer: Transfer | None, leg: str = "d1") -> None:
        self.tally.begins(SendDecode(leg, transfer, 1.0))


def kept() -> Transfer:
    return Transfer(b"{}")


def test_a_split_request_is_measured_from_leg_to_leg() -> None:
    page = Page()
    page.prefill()
    page.tally.note(PrefillAnswered("p1", kept(), 2.0))
    page.now = 2.5
    page.decode(kept())
    page.tally.flows(3.25, to_nobody=False)
    page.tally.note(DecodeEnded("d1"))
    page.tally.ends(Finished(ending=Ending.ANSWERED, path="split"))
    assert page.value("handoff_age_seconds_sum") == 0.5
    assert page.value("handoff_gap_seconds_sum") == 1.25
    assert page.value("decode_leg_seconds_sum", kv="pulled") == 0.75
    assert (page.value("handed_off_total"), page.value("pulled_total")) == (1, 1)
    assert page.value("legs_total", leg="prefill", outcome="answered") == 1
    assert page.value("legs_total", leg="decode", outcome="answered") == 1
    assert page.value("handoff_total", outcome="answered", reason="split") == 1
    assert page.value("handoff_completed_after_disconnect_total") == 0


@pytest.mark.parametrize("fault", [Fault.CONNECT, Fault.LOST, Fault.GARBLED, Fault.STATUS])
def test_a_leg_after_one_that_failed_is_a_retry_by_how_that_failed(fault: Fault) -> None:
    page = Page()
    page.prefill()
    page.tally.note(PrefillFailed("p1", fault))
    page.prefill("p2")
    page.tally.note(PrefillAnswered("p2", kept(), 1.0))
    page.decode(kept())
    page.tally.note(DecodeFailed("d1", fault))
    page.decode(None, "d2")
    assert page.value("leg_retries_total", leg="prefill", after=fault.value) == 1
    assert page.value("leg_retries_total", leg="decode", after=fault.value) == 1
    assert page.value("legs_total", leg="prefill", outcome=fault.value) == 1
    assert page.value("legs_total", leg="decode", outcome=fault.value) == 1
    assert (page.value("handed_off_total"), page.value("pulled_total")) == (1, 0)


def test_an_engine_that_was_asked_first_and_is_cold_has_not_failed() -> None:
    page = Page()
    page.decode(None)
    page.tally.note(DecodeFailed("d1", Fault.COLD))
    page.prefill()
    assert page.value("legs_total", leg="decode", outcome="cold") == 1
    assert page.value("leg_retries_total", leg="prefill", after="cold") == 0


def test_the_age_is_that_of_the_parameters_that_are_sent() -> None:
    page = Page()
    page.prefill()
    page.tally.note(PrefillAnswered("p1", kept(), 0.0))
    page.now = 30.0
    page.prefill("p2")
    page.tally.note(PrefillAnswered("p2", kept(), 30.0))
    page.decode(kept())
    assert page.value("handoff_age_seconds_sum") == 0.0
    assert page.value("handoff_age_seconds_count") == 1


def test_what_the_decode_engine_computes_itself_is_no_pull() -> None:
    page = Page()
    page.prefill()
    page.tally.note(PrefillAnswered("p1", None, 0.0))
    page.now = 1.0
    page.decode(None)
    page.tally.flows(1.5, to_nobody=True)
    assert page.value("decode_leg_seconds_sum", kv="own") == 0.5
    assert page.value("handed_off_total") == page.value("pulled_total") == 0
    assert page.value("handoff_gap_seconds_count") == page.value("handoff_age_seconds_count") == 0


def test_a_pull_for_a_client_that_left_is_counted_once_it_is_over() -> None:
    page = Page()
    page.prefill()
    page.tally.note(PrefillAnswered("p1", kept(), 0.0))
    page.decode(kept())
    page.tally.flows(None, to_nobody=True)
    page.tally.ends(Finished(ending=Ending.CLIENT_GONE, path="split", stranded=("lease-over",)))
    assert page.value("pulled_total") == 1
    assert page.value("handoff_completed_after_disconnect_total") == 1
    assert page.value("handoff_stranded_total", reason="lease-over") == 1
    assert page.value("handoff_expired_total") == 1
    assert page.value("decode_leg_seconds_count", kv="pulled") == 0


def test_a_failure_of_our_own_ends_nothing() -> None:
    page = Page()
    page.tally.ends(None)
    assert page.value("handoff_total", outcome="answered", reason="split") == 0
