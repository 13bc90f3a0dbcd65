"""Any order of events that a shell can produce, against the handoff's promises."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sidecar.handoff import CLIENT_ERRORS, Handoff, HandoffOrderError
from sidecar.transfer.params import UNPAIRED, Transfer
from sidecar.transfer.steps import (
    AbortDecode,
    Action,
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
    PrefillBegun,
    PrefillFailed,
    Refuse,
    SendDecode,
    SendPrefill,
    TimedOut,
)
from sidecar.transfer.targets import Target
from tests.fakes.handoffs import A, B, C

LEASE, MARGIN = 30.0, 5.0
STATUSES = [400, 404, 408, 418, 422, 429, 500, 503]
LEG_FAULTS = [Fault.CONNECT, Fault.LOST, Fault.GARBLED, Fault.STATUS]


class Shell(RuleBasedStateMachine):
    """Plays the relay: starts legs when told, and ends each of them exactly once."""

    @initialize(
        candidates=st.lists(st.sampled_from([A, B, C]), unique=True),
        unsplittable=st.sampled_from([None, None, None, "n"]),
        streams=st.booleans(),
        prefill=st.sampled_from(Fallback),
        pull=st.sampled_from(Fallback),
        retries=st.sampled_from([0, 1]),
        order=st.sampled_from(["prefill-first", "together", "decode-first"]),
        leased=st.sampled_from([True, True, False]),
    )
    def begin(
        self,
        candidates: list[Target],
        unsplittable: str | None,
        streams: bool,
        prefill: Fallback,
        pull: Fallback,
        retries: int,
        order: str,
        leased: bool,
    ) -> None:
        self.now = 100.0
        self.together = order == "together"
        self.leased = leased or self.together
        self.met = False  # the running prefill leg has started its decode leg
        self.lost = False  # the running decode leg waits for a prefill that has failed
        self.policy = HandoffPolicy(
            lease_s=LEASE,
            margin_s=MARGIN,
            on_prefill_failure=prefill,
            on_pull_failure=pull,
            prefill_retries=retries,
        )
        self.handoff = Handoff(self.policy, "r")
        self.prefill: SendPrefill | None = None
        self.decode: SendDecode | None = None
        self.byte_passed = False  # a byte of the running decode leg was reported as good
        self.stopped: set[str] = set()
        self.answering: set[str] = set()
        self.legs: list[str] = []
        self.tried: list[Target] = []
        self.committed: list[Transfer] = []
        self.carried: list[Transfer] = []
        self.late = 0
        self.client_gone = False
        self.outcomes = 0
        self.finished: Finished | None = None
        self.tell(Arrived(candidates, unsplittable, streams, order == "decode-first"))

    def tell(self, event: Event) -> list[Action]:
        actions = self.handoff.on(event, self.now)
        for action in actions:
            assert self.finished is None, "something follows Finished"
            self.obey(action)
        return actions

    def obey(self, action: Action) -> None:
        match action:
            case SendPrefill(leg, target, within_s):
                assert self.prefill is None
                assert self.decode is None
                assert not self.client_gone
                assert 0 < within_s < float("inf")
                self.new_leg(leg)
                self.tried.append(target)
                self.prefill, self.met = action, False
            case SendDecode(leg, transfer, within_s, deadline, release):
                beside = self.prefill is not None
                assert not beside or self.met
                assert self.decode is None
                assert 0 < within_s < float("inf")
                assert release == self.client_gone
                self.new_leg(leg)
                self.decode, self.byte_passed, self.lost = action, False, False
                if transfer is not None and (self.together or not transfer.leased):
                    assert deadline is None
                    self.carried.append(transfer)
                elif transfer is not None:
                    assert deadline is not None
                    assert self.now <= deadline
                    self.carried.append(transfer)
                else:
                    assert not self.client_gone, "nobody waits and nothing is freed"
            case CancelPrefill(leg):
                assert self.prefill is not None
                assert leg == self.prefill.leg
                self.stop(leg)
            case AbortDecode(leg):
                assert self.decode is not None
                assert leg == self.decode.leg
                self.stop(leg)
            case DrainDecode(leg, within_s):
                assert self.decode is not None
                assert leg == self.decode.leg
                assert self.client_gone
                assert self.decode.transfer is not None
                assert 0 < within_s < float("inf")
            case PassThrough() | Refuse() | CutAnswer():
                assert not self.client_gone
                assert isinstance(action, CutAnswer) == self.byte_passed
                self.outcomes += 1
            case Finished():
                self.finished = action

    def new_leg(self, leg: str) -> None:
        assert leg not in self.legs
        self.legs.append(leg)

    def stop(self, leg: str) -> None:
        assert leg not in self.stopped
        self.stopped.add(leg)

    # --- what the world does

    @precondition(lambda self: not self.finished)
    @rule(seconds=st.sampled_from([0.1, 1.0, 20.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def client_leaves(self) -> None:
        first = not self.client_gone and not self.finished
        streaming = self.byte_passed
        self.client_gone = self.client_gone or first
        actions = self.tell(ClientGone())
        if not first:
            assert actions == []
        elif streaming and self.decode and not self.finished:
            assert actions == [AbortDecode(self.decode.leg)]
        elif self.prefill and self.met and self.decode and self.decode.transfer:
            assert AbortDecode(self.decode.leg) not in actions, "it may be all that frees blocks"

    @precondition(lambda self: self.legs)
    @rule(data=st.data())
    def limit_is_over(self, data: st.DataObject) -> None:
        leg = data.draw(st.sampled_from(self.legs))
        actions = self.tell(TimedOut(leg))
        if not any(run and run.leg == leg for run in (self.prefill, self.decode)):
            assert actions == []

    @precondition(lambda self: self.prefill)
    @rule(age=st.sampled_from([0.0, 1.0, 24.0, 25.1, 60.0]), usable=st.booleans())
    def prefill_answers(self, age: float, usable: bool) -> None:
        assert self.prefill
        leg, self.prefill = self.prefill.leg, None
        if self.together:
            actions = self.tell(PrefillAnswered(leg, None, self.now, UNPAIRED))
            if self.met and self.client_gone and self.decode and not self.byte_passed:
                assert all(isinstance(one, DrainDecode) for one in actions)
            return
        transfer = Transfer(b"{}", leased=self.leased) if usable else None
        answered_at = self.now - age
        if transfer and transfer.leased:
            self.committed.append(transfer)
            self.late += self.now > answered_at + LEASE - MARGIN
        gone_before = self.client_gone
        self.tell(PrefillAnswered(leg, transfer, answered_at))
        if transfer and not transfer.leased:
            assert self.finished if gone_before else self.carried[-1] is transfer
        elif transfer and age <= LEASE - MARGIN:
            assert self.carried[-1] is transfer, "a commitment was not followed by a decode leg"
        elif gone_before:
            assert self.finished

    @precondition(lambda self: self.together and self.prefill and not self.met)
    @rule()
    def prefill_leg_goes_out(self) -> None:
        assert self.prefill
        self.met = True
        transfer = Transfer(b"{}")
        self.committed.append(transfer)
        actions = self.tell(PrefillBegun(self.prefill.leg, transfer))
        if self.prefill.leg in self.stopped:
            assert actions == []
            self.met = False
            self.committed.pop()

    @precondition(lambda self: self.prefill)
    @rule(fault=st.sampled_from(LEG_FAULTS), status=st.sampled_from(STATUSES))
    def prefill_fails(self, fault: Fault, status: int) -> None:
        assert self.prefill
        leg, self.prefill = self.prefill.leg, None
        actions = self.tell(PrefillFailed(leg, fault, status))
        if self.met and self.decode:
            if self.decode.transfer and not self.byte_passed and leg not in self.answering:
                assert self.decode.leg in self.stopped, "it waits for what never comes"
        elif fault is Fault.STATUS and status in CLIENT_ERRORS and not self.client_gone:
            assert isinstance(actions[0], Finished) or actions[0] == PassThrough(leg)

    @precondition(lambda self: self.prefill and self.prefill.leg in self.stopped)
    @rule()
    def prefill_is_cancelled(self) -> None:
        assert self.prefill
        leg, self.prefill = self.prefill.leg, None
        self.tell(PrefillFailed(leg, Fault.CANCELLED))

    @precondition(lambda self: self.decode and self.decode.leg not in self.answering)
    @rule()
    def decode_gives_a_byte(self) -> None:
        assert self.decode
        leg = self.decode.leg
        stopped = leg in self.stopped
        self.answering.add(leg)
        actions = self.tell(DecodeFirstByte(leg))
        self.byte_passed = not stopped and not self.client_gone
        assert actions == ([AbortDecode(leg)] if self.client_gone and not stopped else [])

    @precondition(lambda self: self.decode)
    @rule()
    def decode_ends(self) -> None:
        assert self.decode
        leg, self.decode = self.decode.leg, None
        stopped = leg in self.stopped
        self.tell(DecodeEnded(leg))
        if not stopped and not self.client_gone:
            self.outcomes += 1
            if self.prefill is not None:
                assert self.prefill.leg in self.stopped, "nobody needs it any more"
            else:
                assert self.finished
                assert self.finished.ending is Ending.ANSWERED

    @precondition(lambda self: self.decode)
    @rule(fault=st.sampled_from([*LEG_FAULTS, Fault.ERROR_EVENT]), status=st.sampled_from(STATUSES))
    def decode_fails(self, fault: Fault, status: int) -> None:
        assert self.decode
        if self.byte_passed:
            fault = Fault.LOST
        leg, self.decode = self.decode.leg, None
        self.tell(DecodeFailed(leg, fault, status))

    @precondition(
        lambda self: self.decode and self.decode.probe and self.decode.leg not in self.answering
    )
    @rule()
    def decode_is_cold(self) -> None:
        assert self.decode
        leg, self.decode = self.decode.leg, None
        actions = self.tell(DecodeFailed(leg, Fault.COLD))
        assert isinstance(actions[0], Finished if self.client_gone else SendPrefill)

    @precondition(
        lambda self: (
            self.decode
            and self.decode.deadline is not None
            and self.decode.leg not in self.answering
        )
    )
    @rule()
    def decode_misses_its_deadline(self) -> None:
        assert self.decode
        leg, self.decode = self.decode.leg, None
        self.late += 1
        self.tell(DecodeFailed(leg, Fault.LATE))

    @precondition(lambda self: self.decode and self.decode.leg in self.stopped)
    @rule()
    def decode_is_aborted(self) -> None:
        assert self.decode
        leg, self.decode = self.decode.leg, None
        self.tell(DecodeFailed(leg, Fault.CANCELLED))

    @precondition(lambda self: self.finished)
    @rule()
    def nothing_follows(self) -> None:
        for event in (PrefillFailed("r-p1", Fault.LOST), DecodeEnded("r-d1"), Arrived((A,))):
            with pytest.raises(HandoffOrderError):
                self.handoff.on(event, self.now)

    # --- what must hold

    @invariant()
    def parameters_are_sent_once_or_counted(self) -> None:
        assert len({id(transfer) for transfer in self.carried}) == len(self.carried)
        assert all(one in self.committed for one in self.carried if one.leased)
        if self.finished and self.leased and not self.together:
            unsent = len(self.committed) - len(self.carried)
            assert unsent <= self.finished.stranded.count("lease-over") == self.late

    @invariant()
    def legs_are_few(self) -> None:
        prefills = sum("-p" in leg for leg in self.legs)
        assert prefills <= 3 + 1  # each candidate once, and one fresh prefill
        assert len(self.legs) - prefills <= 4
        assert len(set(self.tried)) >= len(self.tried) - 1

    @invariant()
    def the_client_gets_one_outcome(self) -> None:
        if self.finished:
            assert self.prefill is None
            assert self.decode is None
            gone = self.finished.ending is Ending.CLIENT_GONE
            assert self.outcomes == (0 if gone else 1)
            assert self.finished.copies <= self.policy.prefill_retries


Shell.TestCase.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)
TestHandoffMachine = Shell.TestCase
