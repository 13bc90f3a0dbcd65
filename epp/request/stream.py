"""One ext_proc stream as a state machine without I/O: Envoy's messages in, actions out.

The request collects as far as the gateway shows it (its headers, its body's last piece, or its
trailers), then one `Decide` leaves and one `Route` or `Refusal` comes back through `decided`. The
answer's messages are passed on as they come (`answer.py`).

Rules that a gateway enforces, and that the tests check:
* Exactly one reply to the request's headers, and before any piece of its body (A29).
* One reply to each message of the answer, at once, without waiting for the decision; only in
  FULL_DUPLEX_STREAMED may a piece have none or several.
* A stream that ends without an answer never ends with OK: to Envoy that means "skip the picker",
  so every such end is an `Abort`.
* A stream is never closed from our side while the answer may still pass through it.

The reply's shape comes from `protocol_config` of the first message; `docs/decisions/0001` lists
the modes. Whose life a stream is not: `docs/decisions/0002`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from google.protobuf.message import DecodeError

from epp import protocol
from epp._pb import extproc_pb2 as pb
from epp.errors import BadRequest, Refusal, TooSlow

from . import replies
from .actions import Abort, Action, Code, Decide, Finish, Send
from .answer import Answer
from .exchange import Arrival, Outcome, Route
from .intake import BodyIntake, ByteBudget, header_map, subset_hint
from .modes import HELD, UNCOLLECTED, unserved

MAX_REQUEST_BYTES = 10 * 2**20
"""Default limit of one request body."""


class _Phase(Enum):
    OPEN = auto()
    """No request seen yet."""
    COLLECTING = auto()
    """Headers seen, the body is coming."""
    DECIDING = auto()
    """`Decide` is out, its outcome is not in."""
    ROUTED = auto()
    """The decision was answered; what remains is the gateway's answer to its client."""
    BYPASSED = auto()
    """The gateway answered by itself before we had decided: a decision comes too late."""
    CLOSED = auto()
    """Refused, aborted or gone: nothing more is said."""


@dataclass(slots=True, kw_only=True)
class Stream:
    """The life of one ext_proc stream. No method raises, whatever Envoy sends."""

    budget: ByteBudget
    """Bytes of bodies that the whole process may hold."""
    new_id: Callable[[], str]
    """Names a request that carries no `x-request-id`."""
    max_request_bytes: int = MAX_REQUEST_BYTES
    pool: str | None = None
    """The pool that the gateway means, where it says so."""
    _phase: _Phase = field(default=_Phase.OPEN, init=False)
    _request_mode: int = field(default=pb.NONE, init=False)
    _headers: dict[str, str] = field(default_factory=dict[str, str], init=False)
    _new_headers: tuple[tuple[str, str], ...] = field(default=(), init=False)
    _subset: tuple[str, ...] | None = field(default=None, init=False)
    _body: BodyIntake = field(init=False)
    _trailers: bool = field(default=False, init=False)
    _arrival: Arrival | None = field(default=None, init=False)
    """The request while its decision is out."""
    _owed: int = field(default=0, init=False)
    """Pieces of a streamed body that came before the decision, each to be answered after it."""
    _half_closed: bool = field(default=False, init=False)
    _answer: Answer = field(default_factory=Answer, init=False)

    def __post_init__(self) -> None:
        self._body = BodyIntake(self.max_request_bytes, self.budget)

    def receive(self, message: bytes) -> Sequence[Action]:
        """Take one serialised ProcessingRequest."""
        if self._phase is _Phase.CLOSED:
            return ()
        try:
            request = pb.ProcessingRequest.FromString(message)
        except DecodeError:
            return self._abort(Code.INVALID_ARGUMENT, "not a ProcessingRequest")
        if request.HasField("protocol_config"):
            fault = unserved(request.protocol_config)
            if fault:
                return self._abort(Code.INVALID_ARGUMENT, fault)
            self._request_mode = request.protocol_config.request_body_mode
            self._answer.mode = request.protocol_config.response_body_mode
        return self._dispatch(request)

    def decided(self, outcome: Outcome) -> Sequence[Action]:
        """Answer with the outcome of `Decide`. Welcome at any time: a late one is let go."""
        arrival, self._arrival = self._arrival, None
        if arrival is None:
            if isinstance(outcome, Route):
                outcome.progress.reset(answered=False)
            return ()
        if isinstance(outcome, Refusal):
            return self._refuse(outcome)
        self._answer.expect(outcome.progress, outcome.model)
        named = outcome.destination
        if named is not None and not replies.settable(protocol.DESTINATION, named):
            return self._abort(Code.UNAVAILABLE, "the decision names no usable destination")
        self._phase = _Phase.ROUTED
        actions: list[Action] = [Send(data) for data in self._route_replies(arrival, outcome)]
        if self._half_closed:
            actions.append(Finish())
        return actions

    def written(self) -> None:
        """The actions of `decided` are out: the body in them takes no more memory."""
        if self._phase is _Phase.ROUTED:
            self._body.release()

    @property
    def collected(self) -> int | None:
        """Bytes of a body that is coming in pieces; None when nobody waits for one, or when the
        gateway collects it."""
        waits = self._phase is _Phase.COLLECTING and self._request_mode not in HELD
        return self._body.held if waits else None

    def stalled(self) -> Sequence[Action]:
        """The body that is being collected comes too slowly to be waited for (G13)."""
        return self._refuse(TooSlow("the request body did not arrive in time"))

    def half_closed(self) -> Sequence[Action]:
        """Envoy will send nothing more but still listens. Real Envoys reset instead."""
        self._half_closed = True
        if self._phase is _Phase.DECIDING:
            return ()
        if self._phase is _Phase.COLLECTING or (
            self._phase is _Phase.OPEN and not self._answer.seen
        ):
            return self._abort(Code.CANCELLED, "the stream ended before its request did")
        return (Finish(),)

    def closed(self) -> None:
        """The stream is gone, for whatever reason. May be called more than once."""
        self._phase = _Phase.CLOSED
        self._body.release()
        self._arrival = None
        self._answer.gone()

    # The request

    def _dispatch(self, request: pb.ProcessingRequest) -> Sequence[Action]:
        actions: Sequence[Action] = ()
        match request.WhichOneof("request"):
            case "response_body":
                self._answer_began()
                actions = [Send(data) for data in self._answer.body(request.response_body)]
            case "response_headers":
                self._answer_began()
                actions = (Send(self._answer.headers(request)),)
            case "response_trailers":
                self._answer_began()
                actions = [Send(data) for data in self._answer.trailers()]
            case "request_headers":
                self._read_hint(request)
                actions = self._on_request_headers(request.request_headers)
            case "request_body":
                self._read_hint(request)
                actions = self._on_request_body(request.request_body)
            case "request_trailers":
                self._read_hint(request)
                actions = self._on_request_trailers()
        return actions

    def _read_hint(self, request: pb.ProcessingRequest) -> None:
        hint = subset_hint(request.metadata_context.filter_metadata)
        if hint is not None:
            self._subset = hint

    def _on_request_headers(self, message: pb.HttpHeaders) -> Sequence[Action]:
        if self._phase is not _Phase.OPEN:
            return self._abort(Code.INVALID_ARGUMENT, "a second request on one stream")
        self._phase = _Phase.COLLECTING
        headers = self._headers = header_map(message.headers)
        if not headers.get(protocol.REQUEST_ID):
            headers[protocol.REQUEST_ID] = identity = self.new_id()
            self._new_headers = ((protocol.REQUEST_ID, identity),)
        collected = not message.end_of_stream and self._request_mode not in UNCOLLECTED
        refusal = self._unfit(headers, collected=collected)
        if refusal is not None:
            return self._refuse(refusal)
        if not collected:
            return self._decide(body_hidden=not message.end_of_stream)
        if self._request_mode in HELD:
            return (Send(replies.CONTINUE_REQUEST_HEADERS),)
        return ()

    def _unfit(self, headers: Mapping[str, str], *, collected: bool) -> Refusal | None:
        """Why no body has to be waited for."""
        method = headers.get(":method")
        if not method or not headers.get(":path"):
            return BadRequest("the request has no method or no path")
        if method == "CONNECT":
            # A tunnel has no end to wait for, and none of the engines opens one.
            return BadRequest("CONNECT is not served here")
        return self._body.declared(headers.get("content-length")) if collected else None

    def _on_request_body(self, message: pb.HttpBody) -> Sequence[Action]:
        match self._phase:
            case _Phase.OPEN:
                return self._abort(Code.INVALID_ARGUMENT, "request_header_mode must be SEND")
            case _Phase.COLLECTING:
                return self._collect(message)
            case _Phase.DECIDING if self._request_mode == pb.STREAMED:
                self._owed += 1
            case _Phase.ROUTED if self._request_mode == pb.STREAMED:
                return (Send(replies.CONTINUE_REQUEST_BODY),)
        # Some Envoys say the end twice; the second copy would double the body.
        return ()

    def _collect(self, message: pb.HttpBody) -> Sequence[Action]:
        refusal = self._body.add(message.body)
        if refusal:
            return self._refuse(refusal)
        # A buffered body comes whole, also when trailers follow it.
        if message.end_of_stream or self._request_mode == pb.BUFFERED:
            return self._decide(has_body=True)
        if self._request_mode == pb.BUFFERED_PARTIAL:
            # The beginning of a body that outgrew the gateway's buffer: the rest passes unseen.
            self._body.release()
            return self._decide(body_hidden=True)
        return ()

    def _on_request_trailers(self) -> Sequence[Action]:
        match self._phase:
            case _Phase.OPEN:
                return self._abort(Code.INVALID_ARGUMENT, "request_header_mode must be SEND")
            case _Phase.COLLECTING if self._request_mode in HELD:
                # Envoy shows no body message then, and only that could be answered with a route.
                return self._refuse(BadRequest("trailers must not follow an empty body"))
            case _Phase.COLLECTING:
                self._trailers = True
                return self._decide(has_body=True)
            case _Phase.DECIDING:
                self._trailers = True
            case _Phase.ROUTED:
                return (Send(replies.REQUEST_TRAILERS),)
        return ()

    def _decide(self, *, has_body: bool = False, body_hidden: bool = False) -> Sequence[Action]:
        self._phase = _Phase.DECIDING
        self._arrival = Arrival(
            headers=self._headers,
            body=self._body.whole(),
            has_body=has_body,
            body_hidden=body_hidden,
            subset=self._subset,
            pool=self.pool,
            answer_shown=self._answer.mode != pb.NONE,
        )
        return (Decide(self._arrival),)

    def _route_replies(self, arrival: Arrival, route: Route) -> list[bytes]:
        """Header reply first, then the body in the form that the mode asks for."""
        changed = route.body if arrival.has_body else None
        shown = arrival.has_body or arrival.body_hidden
        in_body = shown and self._request_mode in HELD
        out = [
            replies.routing(
                replies.REQUEST_BODY if in_body else replies.REQUEST_HEADERS,
                route.destination,
                (*self._new_headers, *route.set_headers),
                route.remove_headers,
                new_length=changed is not None and len(changed) != len(arrival.body),
                new_body=changed if in_body else None,
                scores=route.scores,
            )
        ]
        if arrival.has_body and not in_body:
            body = arrival.body if changed is None else changed
            out += replies.pieces(replies.REQUEST_BODY, body, end=not self._trailers)
        out += [replies.CONTINUE_REQUEST_BODY] * self._owed
        if self._trailers:
            out.append(replies.REQUEST_TRAILERS)
        return out

    def _answer_began(self) -> None:
        """A gateway that answers by itself makes our decision too late."""
        if self._phase in (_Phase.COLLECTING, _Phase.DECIDING):
            self._phase = _Phase.BYPASSED
            self._arrival = None
            self._body.release()

    # The ends

    def _refuse(self, refusal: Refusal) -> Sequence[Action]:
        self.closed()
        return (Send(replies.refusal(refusal)), Finish(refusal.reason))

    def _abort(self, code: Code, message: str) -> Sequence[Action]:
        self.closed()
        return (Abort(code, message),)
