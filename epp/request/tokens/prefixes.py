"""Tokens of a long text that begins like an earlier one: only what is new is tokenized.

A text is cut before tokens where that is proven safe (`cutting`). What is known of the text up to a
cut is kept by its content: how many tokens, their block keys, and the ids of the unfinished block.
The next turn of a chat finds the state before its last answer; two chats with one long system
prompt share the state behind it.
"""

from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from sys import byteorder
from threading import Lock

import xxhash

from epp.state import blocks

from .encoder import Encoder

MAX_CUTS = 4096
"""Places of one text that are looked at; the text behind the last is one piece."""
FIRST_STEP_BYTES = 1024
"""Least text between the beginning, or a state, and the next state."""
STATE_BYTES = 256
"""Memory of a state without its keys and ids."""


@dataclass(frozen=True, slots=True)
class _State:
    """What is known of a text up to a cut. Of tokens beyond the bounded keys only the number is."""

    tokens: int
    keys: bytes
    """Unsigned 64 bit each, in the machine's order."""
    rest: bytes
    """Packed ids behind the last full block."""

    @property
    def memory(self) -> int:
        return STATE_BYTES + len(self.keys) + len(self.rest)


_EMPTY = _State(0, b"", b"")


class Prefixes:
    """States of all models, the least recently used forgotten first. Any thread may call it."""

    def __init__(self, max_bytes: int, *, block_tokens: int, max_keys: int) -> None:
        self._max_bytes = max_bytes
        self._block_tokens = block_tokens
        self._max_keys = max_keys
        self._states: OrderedDict[tuple[int, bytes], _State] = OrderedDict()
        self._lock = Lock()
        self.bytes = 0
        self.reused_bytes = 0
        """Text that was not tokenized again, since the start."""
        self.encoded_bytes = 0
        """Text that was."""

    def __len__(self) -> int:
        return len(self._states)

    def keys(self, encoder: Encoder, text: str, seed: int, cut: str) -> tuple[int, tuple[int, ...]]:
        """Tokens of a text, and the keys of its full blocks, as many as are kept of a prompt.

        `seed` names model, salt and whatever else tells chains apart; the text may be cut
        before each `cut`, and nowhere if that is empty.
        """
        data = text.encode()
        places = _places(data, cut.encode())
        digests = _digests(data, places)
        at, state = self._longest(seed, digests)
        begin = places[at] if at >= 0 else 0
        marks = _marks(places, begin)
        ends = [*marks, len(data)]
        pieces = [data[a:b].decode() for a, b in zip([begin, *marks], ends, strict=True)]
        self.encoded_bytes += len(data) - begin
        self.reused_bytes += begin
        for end, ids in zip(ends, encoder.pieces(pieces), strict=True):
            state = self._after(state, ids, seed)
            if end != len(data):
                self._keep((seed, digests[bisect_left(places, end)]), state)
        return state.tokens, tuple(array("Q", state.keys))

    def whole(self, ids: bytes, seed: int) -> tuple[int, tuple[int, ...]]:
        """The same of tokens that are there already."""
        state = self._after(_EMPTY, ids, seed)
        return state.tokens, tuple(array("Q", state.keys))

    def _longest(self, seed: int, digests: Sequence[bytes]) -> tuple[int, _State]:
        """The last place whose state is known, -1 for the beginning."""
        with self._lock:
            for at in range(len(digests) - 1, -1, -1):
                state = self._states.get((seed, digests[at]))
                if state is not None:
                    self._states.move_to_end((seed, digests[at]))
                    return at, state
        return -1, _EMPTY

    def _after(self, state: _State, ids: bytes, seed: int) -> _State:
        room = self._max_keys - len(state.keys) // 8
        size = blocks.TOKEN_BYTES * self._block_tokens
        data = (state.rest + ids)[: room * size]
        parent = int.from_bytes(state.keys[-8:], byteorder) if state.keys else None
        more = blocks.more_keys(data, parent, seed, self._block_tokens)
        keys = state.keys + array("Q", more).tobytes()
        tokens = state.tokens + len(ids) // blocks.TOKEN_BYTES
        return _State(tokens, keys, data[len(more) * size :])

    def _keep(self, key: tuple[int, bytes], state: _State) -> None:
        with self._lock:
            old = self._states.pop(key, None)
            if old is not None:
                self.bytes -= old.memory
            self._states[key] = state
            self.bytes += state.memory
            while self.bytes > self._max_bytes:
                _, evicted = self._states.popitem(last=False)
                self.bytes -= evicted.memory


def _places(data: bytes, cut: bytes) -> list[int]:
    """Where the text may be cut, in order, never at its beginning."""
    found: list[int] = []
    at = data.find(cut, 1) if cut else -1
    while at >= 0 and len(found) < MAX_CUTS:
        found.append(at)
        at = data.find(cut, at + 1)
    return found


def _digests(data: bytes, places: Sequence[int]) -> list[bytes]:
    """Names of the text up to each place."""
    state, view, before = xxhash.xxh3_128(), memoryview(data), 0
    names = []
    for place in places:
        state.update(view[before:place])
        names.append(state.digest())
        before = place
    return names


def _marks(places: Sequence[int], begin: int) -> list[int]:
    """Places behind `begin` where a state is kept: ever further apart, and the last one.

    So that what a text keeps is little, though many texts may go on from its middle.
    """
    marks: list[int] = []
    least = begin + max(FIRST_STEP_BYTES, begin // 2)
    for place in places[bisect_left(places, begin + 1) :]:
        if place >= least:
            marks.append(place)
            least = place + max(FIRST_STEP_BYTES, place // 2)
    last = places[-1] if places else 0
    if last > begin and (not marks or marks[-1] != last):
        marks.append(last)
    return marks
