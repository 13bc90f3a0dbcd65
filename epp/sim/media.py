"""Images, audio and video in the requests of a simulated engine. Pure.

Rule 1: an item stands in a prompt as so many tokens that are the same for all items: what it is, is
told beside the tokens, by its name and its place. So two prompts with different images differ in
nothing else, as in real engines.
Rule 2: its name is what the client calls it (`uuid`), else a hash of its JSON, in every engine. Its
embeddings go by that name, and so do the blocks that hold its KV.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
from xxhash import xxh3_128_hexdigest

from epp.sim.tokenizer import PLACEHOLDER

KINDS: Mapping[object, str] = {
    "image_url": "image",
    "audio_url": "audio",
    "video_url": "video",
    "input_audio": "audio",
    "image": "image",  # messages
    "input_image": "image",  # responses
    "input_video": "video",
}
"""What content parts that are no text are, by their type."""
TOKENS = 80
"""Of one item in a prompt: no multiple of any block, so that items begin and end within blocks."""
SIZE_BYTES = 4096
"""Of the embeddings of one item; only told."""

Content = str | list[dict[str, object]] | None
"""Of a message: text, or parts."""


class Peer(msgspec.Struct, frozen=True):
    """Where the embeddings of one item are to be had."""

    peer_host: str
    peer_port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    size_bytes: int = SIZE_BYTES
    nixl_agent_metadata_b64: str = ""


@dataclass(frozen=True, slots=True)
class Item:
    """One of them in a prompt."""

    kind: str
    name: str
    start: int
    """Index of its first token."""
    tokens: int = TOKENS


class Range(msgspec.Struct, frozen=True):
    """The tokens of one item in a prompt."""

    offset: Annotated[int, msgspec.Meta(ge=0)]
    length: Annotated[int, msgspec.Meta(ge=1)]


class Features(msgspec.Struct, frozen=True):
    """What prompts of token ids have beside them, in the shape of vLLM 0.32."""

    mm_hashes: dict[str, list[str]]
    mm_placeholders: dict[str, list[Range]]
    kwargs_data: None = None
    """No numbers: whoever asks wants names and places."""

    @property
    def items(self) -> tuple[Item, ...]:
        """Raises ValueError or KeyError where names and places do not go together."""
        found = [
            Item(kind, name, place.offset, place.length)
            for kind, names in self.mm_hashes.items()
            for name, place in zip(names, self.mm_placeholders[kind], strict=True)
        ]
        return tuple(sorted(found, key=lambda item: item.start))


def features_of(items: Iterable[Item]) -> Features | None:
    """The same as an answer tells it; None where there is nothing but text."""
    told = Features({}, {})
    for item in items:
        told.mm_hashes.setdefault(item.kind, []).append(item.name)
        told.mm_placeholders.setdefault(item.kind, []).append(Range(item.start, item.tokens))
    return told if told.mm_hashes else None


def items_of(prompt: Sequence[int], contents: Iterable[Content]) -> tuple[Item, ...]:
    """Those of a prompt that was made of these contents, first one first."""
    parts = (part for content in contents if isinstance(content, list) for part in content)
    media = [part for part in parts if part.get("type") in KINDS]
    if not media:
        return ()
    places = [at for at, token in enumerate(prompt) if token == PLACEHOLDER]
    return tuple(
        Item(KINDS[part["type"]], _name_of(part), start)
        for part, start in zip(media, places[::TOKENS], strict=True)
    )


def _name_of(part: dict[str, object]) -> str:
    given = part.get("uuid")
    if isinstance(given, str) and given:
        return given
    return xxh3_128_hexdigest(msgspec.json.encode(part, order="sorted"))
