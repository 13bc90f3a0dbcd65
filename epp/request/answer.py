"""The answer's half of an ext_proc stream: what each of its messages is answered with, and what
they tell. No I/O, and no method raises.

Bytes pass as they come, unless a model's name has to be put back. Where the body passes through us
whole, what it says of its cost is read from a copy, and only where a cost may stand.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from epp._pb import extproc_pb2 as pb
from epp.bodies.rename import Rename
from epp.bodies.usage import ResponseWatch, Unknown, Usage

from . import replies
from .exchange import ModelName, Progress
from .intake import AnswerHead, answer_head, served_endpoint
from .modes import HELD, PIECEWISE


@dataclass(slots=True)
class Answer:
    """One answer as the gateway shows it. It may come in any order, or without a request."""

    mode: int = pb.NONE
    """How the gateway shows the body."""
    seen: bool = field(default=False, init=False)
    """Whether any part of it has come."""
    _progress: Progress | None = field(default=None, init=False)
    """Who is to be told, until they have been told the end."""
    _model: ModelName | None = field(default=None, init=False)
    _watch: ResponseWatch | None = field(default=None, init=False)
    _rename: Rename | None = field(default=None, init=False)

    def expect(self, progress: Progress, model: ModelName | None) -> None:
        """The request is on its way: tell `progress`, and put the model's name back."""
        self._progress = progress
        self._model = model

    def headers(self, request: pb.ProcessingRequest) -> bytes:
        """The reply to its headers."""
        message = request.response_headers
        head = answer_head(message.headers)
        first, self.seen = not self.seen, True
        set_headers: Sequence[tuple[str, str]] = ()
        remove = head.owned
        if first and self._progress is not None:
            served = served_endpoint(request.metadata_context.filter_metadata)
            streaming = head.content_type.lower().startswith("text/event-stream")
            set_headers = self._progress.response_headers(head.status, served, streaming=streaming)
            if not message.end_of_stream:
                self._open_body(head)
                if self._rename is not None and self.mode in PIECEWISE:
                    remove = (*remove, "content-length")
        if message.end_of_stream:
            self._finished()
        return replies.response_headers(set_headers, remove)

    def body(self, message: pb.HttpBody) -> list[bytes]:
        """The replies to a piece of its body: one, or in FULL_DUPLEX_STREAMED any number."""
        self.seen = True
        body, end = message.body, message.end_of_stream
        if self.mode == pb.BUFFERED:
            end = True  # a buffered body comes whole, also when trailers follow it
        elif self.mode == pb.BUFFERED_PARTIAL and not end:
            # The rest passes unseen. Half an answer renamed is worse than none (A12).
            self._watch = self._rename = None
        if self._progress is not None:
            self._progress.body(len(body))
        if self._watch is not None:
            self._watch.feed(body)
        out = body
        if self._rename is not None:
            out = self._rename.feed(body)
            if end:
                out += self._rename.finish()
                self._rename = None
        if end:
            self._finished()
        if self.mode == pb.FULL_DUPLEX_STREAMED:
            if body and not out and not message.end_of_stream:
                return []
            return replies.pieces(replies.RESPONSE_BODY, out, end=message.end_of_stream)
        if out == body:
            return [replies.CONTINUE_RESPONSE_BODY]
        shrunk = self.mode in HELD and len(out) != len(body)
        return [replies.new_response_body(out, new_length=shrunk)]

    def trailers(self) -> list[bytes]:
        """The replies to its trailers, which end it."""
        self.seen = True
        rest, self._rename = self._rename, None
        self._finished()
        tail = b""
        if rest is not None and self.mode == pb.FULL_DUPLEX_STREAMED:
            # Elsewhere nothing fits before trailers. Only a text that broke off has a tail.
            tail = rest.finish()
        out = replies.pieces(replies.RESPONSE_BODY, tail, end=False) if tail else []
        return [*out, replies.RESPONSE_TRAILERS]

    def gone(self) -> None:
        """The stream ended, for whatever reason. May be called more than once."""
        self._watch = self._rename = None
        progress, self._progress = self._progress, None
        if progress is not None:
            progress.reset(answered=self.seen)

    def _open_body(self, head: AnswerHead) -> None:
        """A body follows: whatever it needs to pass through."""
        if self.mode == pb.NONE:
            return
        watch = ResponseWatch(head.content_type, head.content_encoding)
        if watch.unknown is Unknown.ABSENT:
            self._watch = watch
        if self._model is not None:
            asked, served = self._model.asked, self._model.served
            rename = Rename(asked, served, head.content_type, head.content_encoding)
            self._rename = rename if rename.may_change else None

    def _finished(self) -> None:
        progress, self._progress = self._progress, None
        watch, self._watch = self._watch, None
        if progress is None:
            return
        usage = Usage() if watch is None else watch.finish()
        if usage != Usage():
            progress.usage(usage)
        progress.finished()
