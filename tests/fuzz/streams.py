"""The ext_proc stream under sequences of messages that no gateway would send."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from epp._pb import extproc_pb2 as pb
from epp.errors import NoEndpoint
from epp.request.actions import Abort, Action, Decide, Finish, Send
from epp.request.exchange import ModelName
from epp.request.intake import ByteBudget
from epp.request.stream import Stream
from tests.fakes import extproc_messages as envoy
from tests.fakes.director import RecordingProgress, route
from tests.fuzz.hunt import Target
from tests.fuzz.mutations import Steps, pack, steps_from, unpack

LIMIT = 5_000
TO = "10.0.0.1:80"
RECEIVE, ROUTE, CHANGE, RENAME, REFUSE, END, LEAVE, STALL = range(8)
"""What a step does; its bytes are a message, a body, a model's name or a header's value."""

MODES = (pb.NONE, pb.STREAMED, pb.BUFFERED, pb.BUFFERED_PARTIAL, pb.FULL_DUPLEX_STREAMED)
ANSWER = b'data: {"model":"engine","usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n'


class Play:
    """One stream, and the rules that hold for it whatever comes."""

    def __init__(self) -> None:
        self.budget = ByteBudget(2 * LIMIT)
        self.stream = Stream(budget=self.budget, new_id=lambda: "id", max_request_bytes=LIMIT)
        self.progress = RecordingProgress(answer_headers=(("x-a", "1"), ("x-b", "\n")))
        self.decisions = 0
        self.outcomes = 0
        self.over = False
        self.header_replies = 0

    def step(self, kind: int, data: bytes) -> None:
        stream = self.stream
        if kind == RECEIVE:
            self.take(stream.receive(data))
        elif kind in {ROUTE, CHANGE, RENAME} and self.outcomes < self.decisions:
            self.outcomes += 1
            decision = route(TO, progress=self.progress)
            if kind == CHANGE:
                decision = replace(decision, body=data, scores=((TO, 0.5), ("[::1]:1", 1e300)))
            elif kind == RENAME:
                text = data.decode("latin-1")
                decision = replace(
                    decision,
                    model=ModelName(text or "asked", "engine"),
                    set_headers=(("x-text", text), (text, "x")),
                    remove_headers=(text,),
                )
            self.take(stream.decided(decision))
            stream.written()
        elif kind == REFUSE and self.outcomes < self.decisions:
            self.outcomes += 1
            self.take(stream.decided(NoEndpoint(data.decode("latin-1"))))
        elif kind == END and not self.over:
            self.take(stream.half_closed())
        elif kind == LEAVE:
            self.over = True
            stream.closed()
        elif kind == STALL and stream.collected is not None:
            self.take(stream.stalled())
        self.check()

    def take(self, actions: Sequence[Action]) -> None:
        assert not (actions and self.over), "said something after the end"
        for index, action in enumerate(actions):
            match action:
                case Send(data):
                    kind = pb.ProcessingResponse.FromString(data).WhichOneof("response")
                    assert kind is not None
                    self.header_replies += kind == "request_headers"
                    assert kind != "request_body" or self.decisions, "a body before the decision"
                case Decide(arrival):
                    self.decisions += 1
                    assert len(arrival.body) <= LIMIT
                case Finish() | Abort():
                    assert index == len(actions) - 1, "something follows the end"
                    self.over = True
                    self.stream.closed()

    def check(self) -> None:
        assert self.decisions <= 1, "decided twice"
        assert self.header_replies <= 1, "two replies to the request's headers"
        assert 0 <= self.budget.used <= LIMIT
        ends = self.progress.ends
        assert len(ends) <= 1, "ended twice"
        assert not ends or self.progress.events[-1] == ends[0], "told something after the end"

    def end(self) -> None:
        self.stream.closed()
        self.stream.closed()
        self.check()
        assert self.budget.used == 0, "bytes are still held"
        assert self.progress.ends or not self.progress.events, "never told the end"


def play(data: bytes) -> None:
    played = Play()
    for kind, body in unpack(data)[:60]:
        played.step(kind % 8, body)
    played.end()


def _orderly(request: int, response: int, outcome: int, data: bytes) -> Steps:
    body = b'{"model":"m","prompt":"hello"}'
    steps: Steps = [
        (RECEIVE, envoy.request_headers(request_mode=request, response_mode=response)),
        (RECEIVE, envoy.request_body(body, subset=["10.0.0.1:80", "[::1]"])),
        (RECEIVE, envoy.request_body(end=True)),
        (outcome, data),
        (RECEIVE, envoy.response_headers("200", served=TO)),
        (RECEIVE, envoy.response_body(ANSWER)),
        (RECEIVE, envoy.response_body(ANSWER, end=True)),
        (RECEIVE, envoy.response_trailers()),
        (END, b""),
    ]
    return steps


def _seeds() -> list[bytes]:
    kinds = ((ROUTE, b""), (CHANGE, b"{}"), (RENAME, b"asked"), (REFUSE, b"nobody"))
    seeds = [
        pack(_orderly(request, response, *kinds[index % 4]))
        for index, (request, response) in enumerate(product(MODES, MODES))
    ]
    typed = pb.ProcessingRequest(
        response_headers=pb.HttpHeaders(
            headers=envoy.headers_of({":status": "200", "content-type": "text/event-stream"})
        )
    ).SerializeToString()
    streamed = _orderly(pb.FULL_DUPLEX_STREAMED, pb.FULL_DUPLEX_STREAMED, RENAME, b"asked")
    streamed[4] = (RECEIVE, typed)
    trailed = [streamed[0], streamed[1], (RECEIVE, envoy.request_trailers()), *streamed[3:]]
    return [
        *seeds,
        pack(streamed),
        pack(trailed),
        pack([(RECEIVE, envoy.GET), (ROUTE, b""), (LEAVE, b"")]),
        pack([streamed[0], streamed[1], (STALL, b"")]),
    ]


STREAM = Target(
    "stream",
    play,
    _seeds(),
    (
        *(f"epp/request/{name}.py" for name in ("stream", "answer", "intake", "replies", "modes")),
        "epp/bodies/",
    ),
    steps_from,
)
