"""What Envoy answers by itself, in the shape that clients of the API read.

Without this they would meet plain text, or nothing at all: for a head that is too large, for a
path that cannot be resolved, for a picker or a pool that is out of reach (A08). The picker's own
refusals and those of routes have that shape already, and stay as they are.
"""

import json
from collections.abc import Sequence

from .clusters import TYPE, Json

HEADERS_TOO_LARGE = 431
_AS_IT_IS = (
    "'content-type' in response.headers && response.headers['content-type'] == 'application/json'"
)
_SMALLER = "the request has too many headers, or too large ones: send fewer, or smaller ones"


def not_found(paths: Sequence[str]) -> str:
    """The body for a path that is none of `paths`."""
    message = f"this gateway serves no such path; it serves {', '.join(paths)}"
    return json.dumps({"error": _error(message, "invalid_request_error", "path_not_found")})


def mappers() -> list[Json]:
    """For Envoy's `local_reply_config`; the first that matches is taken."""
    return [
        # A request just below Envoy's limits (100 headers, 60 KiB) has no room for the picker's
        # headers. Envoy calls that a fault of the picker; it is answered as one header more (G12).
        _mapper(
            "response.code_details == 'header_mutation_result_exceeds_limit'",
            _SMALLER,
            status=HEADERS_TOO_LARGE,
        ),
        _mapper(f"response.code == {HEADERS_TOO_LARGE}", _SMALLER),
        _mapper(
            f"response.code >= 400 && response.code < 500 && !({_AS_IT_IS})",
            "the gateway cannot take this request: %RESPONSE_CODE_DETAILS%",
        ),
        _mapper(
            f"response.code >= 500 && !({_AS_IT_IS})",
            "nobody can serve this request just now: send it again a little later",
            kind="service_unavailable",
        ),
    ]


def _mapper(
    when: str, message: str, *, status: int | None = None, kind: str = "invalid_request_error"
) -> Json:
    """`when`: in the Common Expression Language; `status`: instead of Envoy's own."""
    expression = TYPE + "access_loggers.filters.cel.v3.ExpressionFilter"
    mapper: Json = {
        "filter": {
            "extension_filter": {
                "name": "answered-by-the-gateway",
                "typed_config": {"@type": expression, "expression": when},
            }
        },
        "body_format_override": {
            "json_format": {"error": _error(message, kind, "%RESPONSE_CODE%")},
            "content_type": "application/json",
        },
    }
    return mapper if status is None else mapper | {"status_code": status}


def _error(message: str, kind: str, code: str) -> Json:
    return {"message": message, "type": kind, "param": None, "code": code}
