"""Whatever order messages come in, the stream keeps its rules."""

from collections.abc import Sequence

from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from epp import protocol
from epp._pb import extproc_pb2 as pb
from epp.errors import NoEndpoint
from epp.request.actions import Abort, Action, Decide, Finish, Send
from epp.request.exchange import Arrival
from epp.request.intake import ByteBudget
from epp.request.stream import Stream
from tests.fakes import extproc_messages as envoy
from tests.fakes.director import RecordingProgress, route

LIMIT = 150_000
FDS = pb.FULL_DUPLEX_STREAMED
SERVED = [FDS, pb.BUFFERED, pb.STREAMED, pb.BUFFERED_PARTIAL, pb.NONE]
GOOD_MODES = st.sampled_from(SERVED)
MODES = GOOD_MODES | st.sampled_from([pb.GRPC, 9])
PIECES = st.one_of(
    st.binary(max_size=20), st.integers(60_000, 130_000).map(lambda size: b"\x10\x01" * (size // 2))
)


class StreamOrders(RuleBasedStateMachine):
    """Plays a gateway that keeps no rule, and checks ours after each step."""

    @initialize(hostile=st.booleans(), request=GOOD_MODES, response=GOOD_MODES)
    def open(self, hostile: bool, request: int, response: int) -> None:
        self.budget = ByteBudget(2 * LIMIT)
        self.stream = Stream(budget=self.budget, new_id=lambda: "id", max_request_bytes=LIMIT)
        self.progress = RecordingProgress()
        self.arrival: Arrival | None = None
        self.pending = False
        self.ended = False
        self.closed = False
        self.request_mode = self.response_mode = pb.NONE
        self.pieces = 0
        """Pieces of the request, and their replies, in STREAMED mode."""
        self.replied = 0
        self.hostile = hostile
        """Whether the gateway also does what ends a stream at once."""
        if not hostile:
            self.request_headers(False, request, response, "", None)

    @precondition(lambda self: self.hostile)
    @rule(
        end=st.booleans(),
        request=MODES,
        response=MODES,
        length=st.sampled_from(["", "5", "x", str(LIMIT + 1)]),
        subset=st.sampled_from([None, [], ["a:1"], "a:1,b", 4.0]),
    )
    def request_headers(
        self, end: bool, request: int, response: int, length: str, subset: object
    ) -> None:
        if not self._over:
            self.request_mode, self.response_mode = request, response
        message = envoy.request_headers(
            {"content-length": length},
            end=end,
            request_mode=request,
            response_mode=response,
            subset=subset,
        )
        self._take(self.stream.receive(message))

    @precondition(lambda self: self.hostile or not self._over)
    @rule(body=PIECES, end=st.booleans())
    def request_body(self, body: bytes, end: bool) -> None:
        if not self._over:
            self.pieces += 1
        self._take(self.stream.receive(envoy.request_body(body, end=end)))

    @precondition(lambda self: self.hostile or not self._over)
    @rule()
    def request_trailers(self) -> None:
        self._take(self.stream.receive(envoy.request_trailers()))

    @rule(
        end=st.booleans(),
        status=st.sampled_from(["200", "", "x"]),
        kind=st.sampled_from(["application/json", "text/event-stream", "audio/wav"]),
    )
    def response_headers(self, end: bool, status: str, kind: str) -> None:
        message = envoy.response_headers(status, end=end, more=[("content-type", kind)])
        actions = self.stream.receive(message)
        self._one_reply(actions, "response_headers")

    @precondition(lambda self: self.hostile or not self._over)
    @rule(body=PIECES, end=st.booleans())
    def response_body(self, body: bytes, end: bool) -> None:
        over = self._over
        actions = self.stream.receive(envoy.response_body(body, end=end))
        replies = envoy.sent(actions)
        if over:
            assert replies == []
            return
        if self.response_mode == FDS:
            pieces = envoy.streamed(replies, "response_body")
            assert b"".join(piece.body for piece in pieces) == body
            assert [piece.end_of_stream for piece in pieces][-1] == end
            assert not any(piece.end_of_stream for piece in pieces[:-1])
        else:
            assert envoy.kinds(replies) == ["response_body"]

    @rule()
    def response_trailers(self) -> None:
        self._one_reply(self.stream.receive(envoy.response_trailers()), "response_trailers")

    @precondition(lambda self: self.hostile)
    @rule(garbage=st.binary(max_size=30))
    def garbage(self, garbage: bytes) -> None:
        # What happens to parse may change the modes: the echo is then judged by none.
        before = self.response_mode
        self._take(self.stream.receive(garbage))
        try:
            message = pb.ProcessingRequest.FromString(garbage)
        except DecodeError:
            return
        self.response_mode = (
            message.protocol_config.response_body_mode
            if message.HasField("protocol_config") and not self._over
            else before
        )

    @precondition(lambda self: self.pending)
    @rule(
        how=st.sampled_from(["route", "route", "nobody", "refuse", "bad destination"]),
        body=st.none() | PIECES,
        headers=st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), max_size=3),
    )
    def decided(self, how: str, body: bytes | None, headers: list[tuple[str, str]]) -> None:
        self.pending = False
        if how == "refuse":
            self._take(self.stream.decided(NoEndpoint("nobody")))
            return
        destination = {"route": "10.0.0.1:80", "nobody": None}.get(how, "\n")
        outcome = route(destination, progress=self.progress, body=body, set_headers=tuple(headers))
        actions = self.stream.decided(outcome)
        self._check_route(actions, destination, body)
        self._take(actions)
        self.stream.written()
        assert self.budget.used == 0

    @precondition(lambda self: self.hostile or self.progress.ends)
    @rule()
    def half_closed(self) -> None:
        if not self._over:
            self._take(self.stream.half_closed())

    @precondition(lambda self: self.hostile or self.progress.events)
    @rule()
    def close(self) -> None:
        self.stream.closed()
        self.closed = True

    @invariant()
    def told_the_end_at_most_once_and_nothing_after_it(self) -> None:
        ends = self.progress.ends
        assert len(ends) <= 1
        assert not ends or self.progress.events[-1] == ends[0]

    @invariant()
    def holds_no_more_than_allowed(self) -> None:
        assert 0 <= self.budget.used <= LIMIT
        if self._over:
            assert self.budget.used == 0

    @property
    def _over(self) -> bool:
        return self.closed or self.ended

    def _take(self, actions: Sequence[Action]) -> None:
        """Every action is well-formed, and nothing follows the end."""
        assert not (actions and self._over)
        for index, action in enumerate(actions):
            match action:
                case Send(data):
                    message = pb.ProcessingResponse.FromString(data)
                    assert message.WhichOneof("response") is not None
                    self.replied += message.HasField("request_body")
                    assert len(data) < 64 * 1024 or message.HasField("request_body")
                case Decide(arrival):
                    assert self.arrival is None, "decided twice"
                    self.arrival = arrival
                    self.pending = True
                case Finish() | Abort():
                    assert index == len(actions) - 1
                    self.ended = True
                    self.stream.closed()

    @invariant()
    def no_piece_has_two_replies(self) -> None:
        if not self.hostile and self.request_mode == pb.STREAMED:
            assert self.replied <= self.pieces

    def _one_reply(self, actions: Sequence[Action], kind: str) -> None:
        assert envoy.kinds(envoy.sent(actions)) == ([] if self._over else [kind])

    def _check_route(
        self, actions: Sequence[Action], destination: str | None, body: bytes | None
    ) -> None:
        """Header reply first and once, with its metadata; bytes preserved."""
        replies = envoy.replies_in(actions)
        if not replies:
            return
        assert self.arrival is not None
        first = replies[0]
        kind = first.WhichOneof("response")
        assert kind in ("request_headers", "request_body")
        mutation = getattr(first, str(kind)).response.header_mutation
        assert envoy.set_in(mutation).get(protocol.DESTINATION) == destination
        assert first.HasField("dynamic_metadata") == (destination is not None)
        assert envoy.kinds(replies).count("request_headers") == (kind == "request_headers")
        if self.request_mode != FDS:
            if self.request_mode == pb.STREAMED and not self.hostile:
                assert envoy.kinds(replies).count("request_body") == self.pieces
            return
        pieces = envoy.streamed(replies[1:], "request_body")
        if pieces:
            wanted = self.arrival.body if body is None else body
            assert b"".join(piece.body for piece in pieces) == wanted
            assert all(len(piece.body) <= protocol.MAX_BODY_PIECE for piece in pieces)
            ends = [piece.end_of_stream for piece in pieces]
            trailers = envoy.kinds(replies)[-1] == "request_trailers"
            assert ends == [False] * (len(ends) - 1) + [not trailers]


StreamOrders.TestCase.settings = settings(max_examples=150, stateful_step_count=20)
TestStreamOrders = StreamOrders.TestCase


@given(
    pieces=st.lists(PIECES, max_size=4),
    trailers=st.booleans(),
    empty_end=st.booleans(),
    changed=st.none() | PIECES,
)
def test_an_orderly_request_is_answered_byte_for_byte(
    pieces: list[bytes], trailers: bool, empty_end: bool, changed: bytes | None
) -> None:
    stream = envoy.a_stream()
    messages = [envoy.request_headers(), *(envoy.request_body(piece) for piece in pieces)]
    if trailers:
        messages.append(envoy.request_trailers())
    elif empty_end or not pieces:
        messages.append(envoy.request_body(end=True))
    else:
        messages[-1] = envoy.request_body(pieces[-1], end=True)
    for message in messages[:-1]:
        assert stream.receive(message) == ()
    arrival = envoy.arrival_in(stream.receive(messages[-1]))
    assert arrival.body == b"".join(pieces)
    replies = envoy.sent(stream.decided(route("10.0.0.1:80", body=changed)))
    answered = envoy.streamed(replies, "request_body")
    assert b"".join(piece.body for piece in answered) == (
        arrival.body if changed is None else changed
    )
    assert [piece.end_of_stream for piece in answered] == [False] * (len(answered) - 1) + [
        not trailers
    ]
    expected = ["request_headers"] + ["request_body"] * len(answered)
    assert envoy.kinds(replies) == expected + ["request_trailers"] * trailers
