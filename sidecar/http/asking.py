"""What a request asks for: whose model, and whether its stream tells what it cost. Pure.

vLLM ends a stream with one event of usage if `stream_options.include_usage` is true, and says
nothing of it otherwise. `with_usage` asks in the client's place; `unasked` takes the event out of
the answer again.
"""

from dataclasses import dataclass

import msgspec

from epp.bodies.spans import Body, NotAnObjectError
from sidecar.wire import ASKING

MEASURED = frozenset(
    {
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/embeddings",
        "/v1/images/generations",
        "/v1/audio/speech",
        "/v1/rerank",
        "/v1/score",
        "/v2/rerank",
        "/inference/v1/generate",
        "/classify",
        "/pooling",
        "/rerank",
        "/score",
    }
)
"""Paths at which a model computes an answer; all others are no requests in the metrics' sense."""

ASKABLE = frozenset({"/v1/completions", "/v1/chat/completions"})
"""Paths whose streams tell usage only when they are asked to, by `stream_options`."""

_OPTIONS = "stream_options"
_OFF = {None, b"null", b"false"}


_ON = b'{"include_usage":true}'


@dataclass(slots=True)
class Asked:
    """What a body says. Never changed once it is made."""

    model: str | None = None
    streams: bool = False
    """It asks for a stream in the plain spelling."""
    options: bytes | None = None
    """What it says of `stream_options`; None where it says nothing."""


_NOTHING = Asked()


def asked(body: bytes) -> Asked:
    """What this body asks for: nothing, if it is no JSON object."""
    try:
        wire = ASKING.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _NOTHING
    model = wire.model if isinstance(wire.model, str) else None
    options = None if wire.stream_options is msgspec.UNSET else bytes(wire.stream_options)
    return Asked(model, wire.stream is True, options)


def with_usage(body: bytes, said: Asked) -> bytes | None:
    """This body, in which `said` was read and which asks for a stream, asking for usage besides.

    None where the client decides that itself, or writes what only an engine understands. With
    `continuous_usage_stats`, which is nothing without `include_usage`, every event would change.
    """
    if said.options is None:  # most bodies; some are so long that no member is looked for
        close = body.rindex(b"}")
        return b'%b,"%b":%b%b' % (body[:close], _OPTIONS.encode(), _ON, body[close:])
    try:
        if said.options == b"null":
            new = _ON
        else:
            inner = Body.read(said.options)
            if inner.value("include_usage") not in _OFF:
                return None
            if inner.value("continuous_usage_stats") not in _OFF:
                return None
            new = inner.edited(put={"include_usage": b"true"})
        return Body.read(body).edited(put={_OPTIONS: new})
    except NotAnObjectError:
        return None
