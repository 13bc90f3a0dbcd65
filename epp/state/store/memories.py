"""What writers left for the writers after them, kept by the state port. Pure and bounded."""

from collections import OrderedDict

from epp.framework import EndpointId, Incarnation

MAX_BYTES = 256 << 20
"""Of all memories together: those that were said longest ago go first."""
MAX_ONE = 64 << 20
"""Of one; a larger one is not kept."""
PIECE = 512 << 10
"""Bytes of a memory in one frame."""


class Memories:
    """One memory for each endpoint: of its last life that left one."""

    def __init__(self, most_bytes: int = MAX_BYTES, most_one: int = MAX_ONE) -> None:
        self._most_bytes = most_bytes
        self._most_one = most_one
        self._kept: OrderedDict[EndpointId, tuple[int, bytes]] = OrderedDict()
        self.bytes = 0
        """Kept at present."""
        self.refused = 0
        """Memories that were too large, or went for those that came later."""

    def keep(self, incarnation: Incarnation, memory: bytes) -> None:
        """Replace what is known of this endpoint."""
        self.forget(incarnation.endpoint)
        if len(memory) > self._most_one:
            self.refused += 1
            return
        self._kept[incarnation.endpoint] = (incarnation.start_ms, memory)
        self.bytes += len(memory)
        while self.bytes > self._most_bytes:
            self.forget(next(iter(self._kept)))
            self.refused += 1

    def recall(self, incarnation: Incarnation) -> bytes:
        """Empty where nothing of this very life is kept."""
        start_ms, memory = self._kept.get(incarnation.endpoint, (None, b""))
        return memory if start_ms == incarnation.start_ms else b""

    def forget(self, endpoint: EndpointId) -> None:
        """That endpoint is gone."""
        _, memory = self._kept.pop(endpoint, (0, b""))
        self.bytes -= len(memory)

    def retain(self, members: "set[EndpointId]") -> None:
        """Forget all others."""
        for endpoint in self._kept.keys() - members:
            self.forget(endpoint)


def pieces(memory: bytes) -> list[bytes]:
    """At least one, which is empty for an empty memory."""
    return [memory[at : at + PIECE] for at in range(0, max(1, len(memory)), PIECE)]


class Assembly:
    """Puts the pieces of one memory together. A piece out of order spoils the whole."""

    __slots__ = ("_most", "_next", "_pieces")

    def __init__(self, most_one: int = MAX_ONE) -> None:
        self._most = most_one
        self._pieces: list[bytes] = []
        self._next = 0

    def add(self, piece: bytes, index: int, *, last: bool) -> bytes | None:
        """The memory when it is whole. One that is too large never is."""
        if index == 0:
            self._pieces, self._next = [], 0
        whole = index == self._next and sum(map(len, self._pieces)) + len(piece) <= self._most
        if not whole:
            self._pieces, self._next = [], -1
            return None
        self._pieces.append(piece)
        self._next += 1
        if not last:
            return None
        memory, self._pieces, self._next = b"".join(self._pieces), [], -1
        return memory
