"""What stands in for a prompt whose tokens only the engine knows: its text, piece by piece.

A conversation's next turn begins with the pieces of the last one, so that their keys meet. Images
and the like enter by a digest, for their bytes are neither text nor tokens.
"""

import msgspec
import xxhash

from .prompt import TextPrompt
from .reading import given

MEDIA_TOKENS = 256
"""Guess for one image, audio or video."""
MEDIA_BYTES = MEDIA_TOKENS * 4096 * 2
"""Guess for the embeddings of one: 4,096 numbers of two bytes for each token."""
MAX_MEDIA = 32
"""Different media of one request that are known by name, the first ones."""
MAX_OPAQUE_BYTES = 4096
"""An item that nobody knows counts as text up to this size, and as an image above it."""


class _Part(msgspec.Struct):
    text: str | None = None
    uuid: str | None = None


_part = msgspec.json.Decoder(str | _Part)


class Pieces:
    """The text of one conversation as it is being read."""

    __slots__ = ("_named", "_pieces", "media")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._named: dict[int, int] = {}
        self.media = 0
        """Pieces that are not text."""

    def text(self, text: str) -> None:
        self._pieces.append(text.encode())

    def raw(self, *raws: msgspec.Raw) -> None:
        """JSON as the client wrote it, where it is given."""
        self._pieces += [bytes(raw) for raw in raws if given(raw)]

    def medium(self, raw: msgspec.Raw, name: str | None = None) -> None:
        """Something that is not text, by a digest of its JSON.

        `name`: the client's own, where it gave one. Engines go by it and may be sent nothing else.
        """
        self.media += 1
        digest = xxhash.xxh3_128_digest(bytes(raw) if not name else b"named " + name.encode())
        self._pieces.append(digest)
        if len(self._named) < MAX_MEDIA:
            self._named[int.from_bytes(digest)] = MEDIA_BYTES

    def opaque(self, raw: msgspec.Raw) -> None:
        """An item of unknown kind, which may hold text or an image."""
        if len(bytes(raw)) > MAX_OPAQUE_BYTES:
            self.medium(raw)
        else:
            self.raw(raw)

    def content(self, content: str | list[msgspec.Raw] | None) -> None:
        """A message's content in OpenAI's shapes: text, or parts of which those with text count."""
        if isinstance(content, str):
            self.text(content)
        for raw in content if isinstance(content, list) else ():
            try:
                part = _part.decode(raw)
            except msgspec.ValidationError:
                self.medium(raw)
                continue
            text = part if isinstance(part, str) else part.text
            if text is None:
                self.medium(raw, part.uuid if isinstance(part, _Part) else None)
            else:
                self.text(text)

    def prompt(self, tokenize: tuple[tuple[str, bytes], ...] | None = None) -> TextPrompt:
        text = b"\0".join(self._pieces)
        media = tuple(self._named.items())
        return TextPrompt(text, tokenize, media_tokens=self.media * MEDIA_TOKENS, media=media)
