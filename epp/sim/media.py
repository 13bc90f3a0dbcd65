"""Images, audio and video in the requests of a simulated engine. Pure.

Rule 1: an item's tokens are fixed by its JSON, so equal items give equal prompts, and no others do.
Rule 2: its embeddings are named by the same hash, whoever computed them.
"""

from typing import Annotated

import msgspec
from xxhash import xxh3_128_hexdigest

MEDIA_TYPES = frozenset(
    {
        *("image_url", "audio_url", "video_url", "input_audio"),  # chats
        "image",  # messages
        *("input_image", "input_video"),  # responses
    }
)
"""Types of content parts that are no text."""
SIZE_BYTES = 4096
"""Of the embeddings of one item; only told."""


class Peer(msgspec.Struct, frozen=True):
    """Where the embeddings of one item are to be had."""

    peer_host: str
    peer_port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    size_bytes: int = SIZE_BYTES
    nixl_agent_metadata_b64: str = ""


def hash_of(part: dict[str, object]) -> str:
    """The name of an item."""
    return xxh3_128_hexdigest(msgspec.json.encode(part, order="sorted"))


def text_for(name: str) -> str:
    """What stands for an item in a prompt."""
    return f"<|media {name}|>"
