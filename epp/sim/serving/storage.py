"""A storage of KV that several simulated engines share: one file a prompt, in one directory."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from xxhash import xxh3_128_hexdigest

from epp.sim.hashing import Content, Namespace

_decode = msgspec.json.Decoder(list[Content]).decode


class Storage:
    """Reads and writes are whole files, which other processes see at once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def save(self, prompt: Sequence[int], namespace: Namespace, contents: list[Content]) -> None:
        path = self._path(prompt, namespace)
        begun = path.with_suffix(".part")
        begun.write_bytes(msgspec.json.encode(contents))
        begun.rename(path)

    def load(self, prompt: Sequence[int], namespace: Namespace) -> tuple[Content, ...] | None:
        """What the blocks of this prompt hold; None when nobody has stored it."""
        with suppress(FileNotFoundError):
            return tuple(_decode(self._path(prompt, namespace).read_bytes()))
        return None

    def _path(self, prompt: Sequence[int], namespace: Namespace) -> Path:
        named = msgspec.msgpack.encode((list(prompt), namespace))
        return self._directory / xxh3_128_hexdigest(named)
