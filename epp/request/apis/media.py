"""Images and speech made from text, and forms with audio or images: routed by load.

A form's bytes are never refused and never changed (fault A16): of its fields only the model's name
is read, and it passes without where that cannot be found.
"""

import re

import msgspec

from .prompt import Parsed
from .reading import Body, odd, read

UNSCORED = "no text is generated"
FORM = "a form"

MAX_PARTS = 128
MAX_PART_HEADERS = 4096
"""Bytes of the headers of one part."""
MAX_NAME = 1024
"""Bytes of a model's name."""

_BOUNDARY = re.compile(r';\s*boundary\s*=\s*(?:"([^"]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_MODEL = re.compile(
    rb'^content-disposition:[^\r\n]*;[ \t]*name[ \t]*=[ \t]*(?:"model"|model(?=[ \t;\r\n]|$))',
    re.IGNORECASE | re.MULTILINE,
)

_body = msgspec.json.Decoder(Body)


def images(path: str, body: bytes) -> Parsed:
    """OpenAI's images from a text. Raises BadRequest."""
    return _made("images", path, body)


def speech(path: str, body: bytes) -> Parsed:
    """OpenAI's speech from a text. Raises BadRequest."""
    return _made("speech", path, body)


def form(path: str, content_type: str, body: bytes) -> Parsed:
    """A form with audio to write down or to translate, or with images to edit."""
    return Parsed(api="form", path=path, model=_form_model(content_type, body), unscored=FORM)


def _made(api: str, path: str, body: bytes) -> Parsed:
    request = read(_body, body)
    if request is None:
        return odd(api, path, body)
    return Parsed(api=api, path=path, model=request.model or "", unscored=UNSCORED)


def _form_model(content_type: str, body: bytes) -> str:
    """The field `model`, the last of several as engines read it; empty where there is none."""
    named = _BOUNDARY.search(content_type)
    if named is None:
        return ""
    delimiter = b"--" + (named[1] or named[2]).encode("latin-1", "replace")
    model = b""
    at = body.find(delimiter)
    delimiter = b"\r\n" + delimiter
    for _ in range(MAX_PARTS):
        head = body.find(b"\r\n", at) if at >= 0 else -1
        value = body.find(b"\r\n\r\n", head, head + MAX_PART_HEADERS) if head >= 0 else -1
        if value < 0:
            break
        at = body.find(delimiter, value + 2)
        end = len(body) if at < 0 else at
        if end - value - 4 <= MAX_NAME and _MODEL.search(body, head, value):
            model = body[value + 4 : end]
        at = at + 2 if at >= 0 else at
    return model.decode("utf-8", "replace").strip()
