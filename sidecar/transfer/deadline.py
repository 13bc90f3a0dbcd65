"""How long a client's gateway still waits, and what the legs are told of it. Pure.

An Envoy says with each request after how many milliseconds it gives it up, and takes that header
from clients that it does not trust; the picker says what is left after earlier attempts. Of both
the shorter one counts, and it only ever shortens what a request is given here.
"""

from collections.abc import Callable
from dataclasses import dataclass

from epp.protocol import TIMEOUT_LEFT_MS, TIMEOUT_MS
from sidecar.http import headers
from sidecar.http.headers import Fields
from sidecar.http.incoming import Incoming


@dataclass(frozen=True, slots=True)
class Deadline:
    """One request's. `at` in the clock's seconds; None: nobody has said."""

    at: float | None
    clock: Callable[[], float]

    @classmethod
    def of(cls, request: Incoming, clock: Callable[[], float]) -> "Deadline":
        """What the request says, counted from now; what cannot be read says nothing."""
        said = (headers.count(request.value(name)) for name in (TIMEOUT_LEFT_MS, *TIMEOUT_MS))
        shortest = min((ms for ms in said if ms), default=None)
        return cls(None if shortest is None else clock() + shortest / 1000, clock)

    @property
    def left_s(self) -> float | None:
        """None for ever, 0 when it is over."""
        return None if self.at is None else max(self.at - self.clock(), 0.0)

    def told(self, fields: Fields) -> Fields:
        """A leg's fields, in which what is left stands in the place of what the client had."""
        left_s = self.left_s
        if left_s is None:
            return fields
        value = b"%d" % max(1, int(left_s * 1000))
        names = {name.encode() for name in TIMEOUT_MS}
        return [(key, value if key.lower() in names else old) for key, old in fields]
