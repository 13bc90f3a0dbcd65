"""Where a request stands in a trace, as `traceparent` says it (W3C Trace Context). Pure.

`00-<32 hex digits of the trace>-<16 of the span>-<2 of flags>`, in lower case. A later version may
say more behind that, which is not read. What cannot be read is taken for no trace at all, and then
`tracestate` means nothing either.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
SAMPLED = 0x01

_SHAPE = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})"
    r"-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?"
)
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16
_BOTH = (1 << 192) - 1
_SHARE_BITS = 32
"""So finely a share is kept to."""


class Chance(Protocol):
    """A source of random numbers, such as `random.Random`."""

    def getrandbits(self, bits: int, /) -> int:
        """That many random bits."""


@dataclass(frozen=True, slots=True)
class SpanContext:
    """One span of one trace."""

    trace_id: str
    """32 hex digits, not all 0."""
    span_id: str
    """16 hex digits, not all 0."""
    flags: int = SAMPLED

    @property
    def sampled(self) -> bool:
        """Whether whoever began the trace wants it recorded."""
        return bool(self.flags & SAMPLED)

    @property
    def header(self) -> str:
        """The value of `traceparent` for what this span causes."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"

    def child(self, rng: Chance) -> "SpanContext":
        """Another span of the same trace."""
        return replace(self, span_id=_digits(rng, 64))


def read(values: Sequence[str]) -> SpanContext | None:
    """What the values of `traceparent` say; None when there is no trace, or none to be read."""
    shape = _SHAPE.fullmatch(values[0].strip(" \t")) if len(values) == 1 else None
    if shape is None or shape["version"] == "ff" or (shape["version"] == "00" and shape["more"]):
        return None
    if shape["trace"] == _NO_TRACE or shape["span"] == _NO_SPAN:
        return None
    return SpanContext(shape["trace"], shape["span"], int(shape["flags"], 16))


def fresh(rng: Chance, share: float) -> SpanContext:
    """The first span of a new trace; of many, this share is sampled (0 to 1)."""
    bits = rng.getrandbits(192 + _SHARE_BITS)
    sampled = bits >> 192 < share * (1 << _SHARE_BITS)
    both = f"{bits & _BOTH:048x}"
    trace_id, span_id = both[:32], both[32:]
    if trace_id == _NO_TRACE or span_id == _NO_SPAN:
        trace_id, span_id = _digits(rng, 128), _digits(rng, 64)
    return SpanContext(trace_id, span_id, SAMPLED if sampled else 0)


def _digits(rng: Chance, bits: int) -> str:
    """That many random bits in hex digits, not all 0."""
    return f"{rng.getrandbits(bits) or 1:0{bits // 4}x}"
