"""How long a client's gateway still waits, and what the legs are told of it. Pure.

An Envoy says with each request after how many milliseconds it gives it up, and takes that header
from clients that it does not trust; the picker says what is left after earlier attempts. Of both
the shorter one counts, and it only ever shortens what a request is given here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from epp.protocol import TIMEOUT_LEFT_MS, TIMEOUT_MS
from sidecar.http import headers
from sidecar.http.headers import Fields
from sidecar.http.incoming import Incoming
from sidecar.http.shapes import RequestShape

_SAID = (TIMEOUT_LEFT_MS, *TIMEOUT_MS)
_NAMES = tuple(name.encode() for name in TIMEOUT_MS)


@dataclass(slots=True)
class Deadline:
    """One request's. `at` in the clock's seconds; None: nobody has said. Never changed once it is
    made."""

    at: float | None
    clock: Callable[[], float]

    @classmethod
    def of(cls, request: Incoming, clock: Callable[[], float]) -> "Deadline":
        """What the request says, counted from now; what cannot be read says nothing."""
        shortest = None
        for name in _SAID:
            text = request.value(name)
            ms = None if text is None else headers.count(text)
            if ms and (shortest is None or ms < shortest):
                shortest = ms
        return cls(None if shortest is None else clock() + shortest / 1000, clock)

    @property
    def left_s(self) -> float | None:
        """None for ever, 0 when it is over."""
        return None if self.at is None else max(self.at - self.clock(), 0.0)

    def told(self, fields: Fields) -> Fields:
        """A leg's fields, in which what is left stands in the place of what the client had."""
        value = self._value
        if value is None:
            return fields
        return [(key, value if key.lower() in _NAMES else old) for key, old in fields]

    def lines(self, shape: RequestShape, values: Sequence[bytes]) -> bytes:
        """Those fields of a leg, as they are written."""
        value, lines = self._value, b""
        for name in _NAMES:
            if name in shape.at:
                more = (
                    shape.lines_of(name, values) if value is None else b"%b: %b\r\n" % (name, value)
                )
                lines += more
        return lines

    @property
    def _value(self) -> bytes | None:
        return None if self.at is None else b"%d" % max(1, int((self.at - self.clock()) * 1000))
