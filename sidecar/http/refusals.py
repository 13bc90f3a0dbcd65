"""Answers that the sidecar gives in the engine's place: OpenAI-shaped JSON, never empty."""

from dataclasses import dataclass

import msgspec

from epp.errors import EppError
from sidecar.transfer.legs import REFUSED_STATUS


@dataclass(frozen=True, slots=True)
class Refused:
    """Why an exchange ends with an answer of our own. `message` never quotes input."""

    status: int
    kind: str
    """`error.type` of the body, as OpenAI's clients know it."""
    code: str
    """Stable word for machines; also a metric label."""
    message: str
    close: bool = False
    """Whether the connection cannot carry another request."""


class LegError(EppError):
    """An exchange cannot go on; `refused` is the answer when there is still time for one."""

    reason = "leg"

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.message)
        self.refused = refused


UNREADABLE = Refused(400, "invalid_request_error", "bad-request", "The request is not valid HTTP.")
HEAD_TOO_LARGE = Refused(
    431,
    "invalid_request_error",
    "head-too-large",
    "The request has too many headers, or too large ones: send fewer, or smaller ones.",
)
TARGET_UNREADABLE = Refused(
    400,
    "invalid_request_error",
    "bad-target",
    "The target must be visible ASCII, and not too long.",
    close=True,
)
HEAD_STALLED = Refused(
    408,
    "invalid_request_error",
    "head-stalled",
    "The head of the request did not come in time.",
    close=True,
)
BAD_TARGET = Refused(
    400,
    "invalid_request_error",
    "bad-target",
    "The target must begin with '/'.",
    close=True,
)
BAD_BODY = Refused(
    400, "invalid_request_error", "bad-body", "The request body could not be read.", close=True
)
BAD_HEADER = Refused(
    400, "invalid_request_error", "bad-header", "A header holds bytes that cannot be passed on."
)
UPLOAD_STALLED = Refused(
    408, "invalid_request_error", "upload-stalled", "The request body stopped coming.", close=True
)
NO_UPGRADE = Refused(
    400, "invalid_request_error", "no-upgrade", "Protocol upgrades are not offered.", close=True
)
NO_TUNNEL = Refused(
    405, "invalid_request_error", "no-tunnel", "CONNECT is not offered here.", close=True
)
BAD_EXPECT = Refused(
    417,
    "invalid_request_error",
    "bad-expect",
    "Only 100-continue can be met.",
    close=True,
)
TOO_LARGE = Refused(
    413, "invalid_request_error", "too-large", "The request body exceeds the limit.", close=True
)
BAD_JSON = Refused(
    400,
    "invalid_request_error",
    "bad-json",
    "The body names kv_transfer_params and is not JSON in UTF-8 that they could be taken out of.",
)
HIDDEN_PARAMS = Refused(
    400,
    "invalid_request_error",
    "hidden-params",
    "The encoded body may name kv_transfer_params; send it without a Content-Encoding.",
)
BAD_ENCODING = Refused(
    415,
    "invalid_request_error",
    "bad-encoding",
    "The body's Content-Encoding cannot be read here; send it without one.",
)
TOO_MUCH = Refused(
    503,
    "service_unavailable",
    "too-much",
    "The request bodies held here have reached their limit; try again.",
    close=True,
)
TOO_MANY = Refused(
    503, "service_unavailable", "too-many", "Too many requests are in flight here; try again."
)
DEADLINE = Refused(
    504,
    "gateway_timeout",
    "deadline",
    "The time that the gateway gives this request is over.",
    close=True,
)
ENGINE_ABSENT = Refused(
    503, "service_unavailable", "engine-absent", "The engine does not accept connections (yet)."
)
ENGINE_UNREACHED = Refused(
    503,
    "service_unavailable",
    "engine-unreached",
    "No connection to the engine came about in time.",
)
ENGINE_LOST = Refused(
    502, "bad_gateway", "engine-lost", "The engine closed the connection before it answered."
)
ENGINE_GARBLED = Refused(
    502, "bad_gateway", "engine-garbled", "The engine's answer is not valid HTTP."
)
ENGINE_SILENT = Refused(
    504,
    "gateway_timeout",
    "engine-silent",
    "The engine sent nothing within the idle timeout.",
    close=True,
)
TOO_LONG = Refused(
    504, "gateway_timeout", "too-long", "The exchange took longer than is allowed.", close=True
)
BROKEN = Refused(502, "bad_gateway", "sidecar-broken", "The sidecar failed with this request.")

_HANDOFF_TEXTS = {
    "prefill-timeout": "No prefill engine answered in time.",
    "engine-silent": "The engine did not answer in time.",
    "engine-absent": ENGINE_ABSENT.message,
    "engine-unreached": ENGINE_UNREACHED.message,
    "engine-lost": ENGINE_LOST.message,
    "engine-garbled": ENGINE_GARBLED.message,
}
_KINDS = {503: "service_unavailable", 504: "gateway_timeout"}


def refused_leg(reason: str) -> Refused:
    """The answer to a prefill leg that is not taken."""
    return Refused(REFUSED_STATUS, "invalid_request_error", reason, "This prefill leg is refused.")


def handoff_failed(status: int, reason: str) -> Refused:
    """The answer to a client whose request no engine could serve."""
    text = _HANDOFF_TEXTS.get(reason, "No prefill engine could be used.")
    return Refused(status, _KINDS.get(status, "bad_gateway"), reason, text)


def body_of(refused: Refused) -> bytes:
    """The body of the answer."""
    error = {
        "message": refused.message,
        "type": refused.kind,
        "param": None,
        "code": refused.code,
    }
    return msgspec.json.encode({"error": error})
