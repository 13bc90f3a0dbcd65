"""What stands in a prompt of token ids and is no text, as vLLM says it.

It does so in the answers of its render endpoints, and takes it in requests to
`/inference/v1/generate`.

`mm_hashes` has the names of the items of each kind, `mm_placeholders` where their tokens begin. The
names are those that the engine's KV events repeat, whoever gave them: the client (`uuid` of a
part) or the engine, from the content.
"""

import msgspec

from epp.state.blocks import Media, media_identity

MAX_ITEMS = 4096
"""Items of one prompt. Each takes tokens, so no context holds more."""


class _Place(msgspec.Struct):
    offset: int


class _Features(msgspec.Struct):
    mm_hashes: dict[str, list[str]]
    mm_placeholders: dict[str, list[_Place]]


_features = msgspec.json.Decoder(_Features)


def media_of(raw: msgspec.Raw) -> tuple[Media, ...]:
    """Items by name and place. Raises ValueError where that is not told of every one."""
    features = _features.decode(raw)
    if features.mm_hashes.keys() != features.mm_placeholders.keys():
        raise ValueError("items without a place")
    found = [
        Media(media_identity(name), place.offset)
        for kind, names in features.mm_hashes.items()
        for name, place in zip(names, features.mm_placeholders[kind], strict=True)
    ]
    if len(found) > MAX_ITEMS or any(one.position < 0 for one in found):
        raise ValueError("items that no prompt can have")
    return tuple(found)
