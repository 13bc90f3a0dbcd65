"""Find the parser of a request by its path, and what must hold before a body is parsed.

The longest known suffix wins, compared by whole segments, without the query and without a slash at
the end (fault A09). What is not a JSON body posted to a known path passes unscored: GETs (A02),
multipart (A16), compressed bodies (A14), and every path that we do not know.
"""

from collections.abc import Callable

from epp.errors import BadRequest
from epp.request.exchange import Arrival

from . import openai, passthrough
from .prompt import Parsed

Parser = Callable[[str, bytes], Parsed]

PARSERS: dict[str, Parser] = {
    "/chat/completions": openai.chat,
    "/completions": openai.completions,
}
"""Suffix of a path: its parser."""


def plain_path(path: str) -> str:
    """The path without query, fragment and slashes at the end."""
    return path.partition("?")[0].partition("#")[0].rstrip("/") or "/"


def resolve(path: str) -> Parser | None:
    """The parser of a plain path, or None."""
    known = [suffix for suffix in PARSERS if path.endswith(suffix)]
    return PARSERS[max(known, key=len)] if known else None


def parse(arrival: Arrival) -> Parsed:
    """Understand one request. Raises BadRequest for a known API that was not given JSON for it."""
    path = plain_path(arrival.path)
    parser = resolve(path)
    if parser is None:
        return passthrough.unscored(path, "unknown path")
    if arrival.method not in {"POST", ""}:
        return passthrough.unscored(path, "not a POST")
    if arrival.body_hidden:
        return passthrough.unscored(path, "body not shown")
    media_type = arrival.headers.get("content-type", "").partition(";")[0].strip().lower()
    json = media_type in {"", "application/json", "text/json"} or media_type.endswith("+json")
    if not arrival.body and (json or not arrival.has_body):
        raise BadRequest("the body is empty; send a JSON object with a `model`")
    if not json:
        return passthrough.unscored(path, "not JSON")
    if arrival.headers.get("content-encoding", "identity").strip().lower() not in {"", "identity"}:
        return passthrough.unscored(path, "compressed")
    return parser(path, arrival.body)
