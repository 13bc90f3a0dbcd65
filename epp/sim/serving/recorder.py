"""The last requests that a simulated engine received, byte for byte, for tests that compare them.

Bounded twice: by number and by the bytes of the bodies together, whichever is reached first.
"""

from base64 import b64encode
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

MAX_REQUESTS = 200
MAX_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Received:
    """One request as it came."""

    number: int
    """1 for the first request of this engine server."""
    method: str
    target: str
    """Path and query."""
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    def values(self, name: str) -> list[str]:
        """Values of all headers of one name."""
        wanted = name.lower().encode()
        return [value.decode("latin-1") for key, value in self.headers if key.lower() == wanted]

    def shown(self) -> dict[str, object]:
        """For JSON: the body in base64, and as text where it is UTF-8."""
        try:
            text: str | None = self.body.decode()
        except UnicodeDecodeError:
            text = None
        return {
            "number": self.number,
            "method": self.method,
            "target": self.target,
            "headers": [[one.decode("latin-1") for one in pair] for pair in self.headers],
            "body": text,
            "body_base64": b64encode(self.body).decode(),
        }


class Recorder:
    """Keeps the youngest requests."""

    def __init__(self, max_requests: int = MAX_REQUESTS, max_bytes: int = MAX_BYTES) -> None:
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self._bytes = 0
        self._received: deque[Received] = deque()
        self.total = 0
        """Requests ever received."""

    @property
    def requests(self) -> Sequence[Received]:
        """Oldest first."""
        return tuple(self._received)

    def note(
        self, method: str, target: str, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> None:
        self.total += 1
        self._received.append(Received(self.total, method, target, tuple(headers), body))
        self._bytes += len(body)
        while len(self._received) > self._max_requests or self._bytes > self._max_bytes:
            self._bytes -= len(self._received.popleft().body)
