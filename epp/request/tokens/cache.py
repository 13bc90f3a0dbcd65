"""What was found for a prompt before, by its content."""

from collections import OrderedDict
from dataclasses import replace

import xxhash

from epp.request.apis.prompt import Fields, Parsed

from .tokenised import Tokenised

KEY_BYTES = 48
"""Memory of one key in the cache, with its share of the tuple."""
ENTRY_BYTES = 256
"""Memory of an entry without its keys."""


class TokenCache:
    """Least recently used first out, bounded by the memory of its keys."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[bytes, Tokenised] = OrderedDict()
        self.bytes = 0

    def get(self, digest: bytes) -> Tokenised | None:
        entry = self._entries.get(digest)
        if entry is not None:
            self._entries.move_to_end(digest)
        return entry

    def again(self, digest: bytes) -> Tokenised | None:
        """The same, as what is known already."""
        found = self.get(digest)
        return None if found is None else replace(found, how="cached")

    def put(self, digest: bytes, entry: Tokenised) -> None:
        old = self._entries.pop(digest, None)
        if old is not None:
            self.bytes -= _memory(old)
        self._entries[digest] = entry
        self.bytes += _memory(entry)
        while self.bytes > self._max_bytes:
            _, evicted = self._entries.popitem(last=False)
            self.bytes -= _memory(evicted)

    def __len__(self) -> int:
        return len(self._entries)


def _memory(entry: Tokenised) -> int:
    return ENTRY_BYTES + KEY_BYTES * len(entry.keys)


def digest_of(parsed: Parsed, fields: Fields, way: str) -> bytes:
    """Name of a question by its content; no two contents run into each other."""
    state = xxhash.xxh3_128()
    pieces = [way.encode(), parsed.model.encode(), parsed.cache_salt.encode()]
    for name, raw in fields:
        pieces += [name.encode(), raw]
    for piece in pieces:
        state.update(len(piece).to_bytes(8, "little"))
        state.update(piece)
    return state.digest()
