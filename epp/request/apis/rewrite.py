"""Call the model of a JSON request by another name, and leave every other byte as it came.

Engines tell numbers, duplicate names and spellings apart that a decoder would not (fault A13), so
the body is never written anew: only the spans of the model's values change.
"""

import re

import msgspec

from epp.bodies.spans import Body, NotAnObjectError

_MODEL = "model"
_BOM = b"\xef\xbb\xbf"
_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_ENCODED_HALF = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")


def with_model(body: bytes, name: str) -> bytes | None:
    """`body` with `name` as the value of each top-level member `model`.

    None where there is nothing to edit: not one JSON object in UTF-8 (a form, a compressed body),
    or one without a model. Where `model` stands twice both change, for engines differ in which of
    them counts.
    """
    try:
        found = Body.read(_readable(body))
    except NotAnObjectError:
        return None
    if _MODEL not in found.fields:
        return None
    # The offsets of the readable text are those of the text itself.
    value = msgspec.json.encode(name.encode("utf-8", "replace").decode())
    return found.over(body).edited(put={_MODEL: value})


def _readable(body: bytes) -> bytes:
    """A text of the same length and members that a strict decoder reads.

    Halves of surrogate pairs and a byte order mark are no strict JSON, but engines take them.
    """
    if body.startswith(_BOM):
        body = b"   " + body[3:]
    if b"\\ud" in body or b"\\uD" in body:
        body = _HALF_PAIR.sub(rb"\\u0041", body)
    if b"\xed" in body:
        body = _ENCODED_HALF.sub(b"AAA", body)
    return body
