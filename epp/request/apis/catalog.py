"""Find the parser of a request by its path, and what must hold before a body is parsed.

A path is known by its last segments, without the query and without a slash at the end (fault A09);
of several that fit the longest wins. What is not a JSON body posted to a known path, or the message
of a known gRPC call, passes unscored: GETs (A02), forms (A16), and every path that we do not know.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from epp.errors import BadRequest, ModelNotFound
from epp.request.exchange import Arrival

from . import (
    encodings,
    generate,
    light,
    media,
    messages,
    openai,
    passthrough,
    pooled,
    responses,
    sglang,
    vertex,
    vllm_grpc,
)
from .prompt import Parsed
from .reading import NOT_JSON, SEND

Parser = Callable[[str, bytes], Parsed]

PARSERS: dict[str, Parser] = {
    "/chat/completions": openai.chat,
    "/chat/completions/render": light.render,
    "/completions": openai.completions,
    "/completions/render": light.render,
    "/responses": responses.responses,
    "/responses/render": light.render,
    "/conversations": light.conversations,
    "/embeddings": pooled.embeddings,
    "/images/generations": media.images,
    "/audio/speech": media.speech,
    "/v1/messages": messages.messages,
    "/v1/messages/count_tokens": light.count_tokens,
    "/v1/messages/render": light.render,
    "/inference/v1/generate": generate.generate,
    "/tokenize": light.tokens,
    "/detokenize": light.tokens,
    "/pooling": pooled.pooling,
    "/classify": pooled.pooling,
    "/v2/embed": pooled.pooling,
    "/score": pooled.scores,
    "/rerank": pooled.scores,
    "/generate": sglang.generate,
    "/vllm.grpc.engine.VllmEngine/Generate": vllm_grpc.generate,
    "/vllm.grpc.engine.VllmEngine/Embed": vllm_grpc.embed,
    "/google.cloud.aiplatform.v1.PredictionService/ChatCompletions": vertex.chat,
    "/google.cloud.aiplatform.v1.PredictionService/RawPredict": vertex.raw,
    "/google.cloud.aiplatform.v1.PredictionService/StreamRawPredict": vertex.raw,
    "/google.cloud.aiplatform.v1beta1.PredictionService/ChatCompletions": vertex.chat,
    "/google.cloud.aiplatform.v1beta1.PredictionService/RawPredict": vertex.raw,
    "/google.cloud.aiplatform.v1beta1.PredictionService/StreamRawPredict": vertex.raw,
}
"""Last segments of a path: the parser of its bodies."""

FORMS = frozenset(
    {"/audio/transcriptions", "/audio/translations", "/images/edits", "/images/variations"}
)
"""Last segments of the paths that take forms."""

ANTHROPIC, OPENAI, VLLM = "anthropic-parser", "openai-parser", "vllmhttp-parser"
SGLANG, VLLM_GRPC, VERTEX = "sglanghttp-parser", "vllmgrpc-parser", "vertexai-parser"
PASSTHROUGH = "passthrough-parser"
DEFAULT = frozenset({ANTHROPIC, OPENAI, VLLM, PASSTHROUGH})
"""Families that are read where nobody chose: the others' paths may be anybody's."""
CALLS = {
    suffix: VLLM_GRPC if suffix.startswith("/vllm.grpc.") else VERTEX
    for suffix in PARSERS
    if suffix.startswith(("/vllm.grpc.", "/google.cloud."))
}
"""Paths of gRPC calls; their bodies are framed messages."""

FAMILIES: dict[str, str] = {
    **dict.fromkeys((*PARSERS, *FORMS), OPENAI),
    **{suffix: ANTHROPIC for suffix in PARSERS if suffix.startswith("/v1/messages")},
    "/inference/v1/generate": VLLM,
    "/tokenize": VLLM,
    "/detokenize": VLLM,
    "/pooling": VLLM,
    "/classify": VLLM,
    "/v2/embed": VLLM,
    "/score": VLLM,
    "/rerank": VLLM,
    "/generate": SGLANG,
    **CALLS,
}
"""Last segments of a path: the reference's parser that it belongs to; vLLM's has its own APIs."""

BODILESS = frozenset({"/conversations"})
"""Those whose posts may have no body."""

_LONGEST = max(suffix.count("/") for suffix in (*PARSERS, *FORMS))


@dataclass(frozen=True, slots=True)
class Rules:
    """What the operator says about requests."""

    known_models: frozenset[str] = frozenset()
    """Names that are served; every other one gets 404. Empty: any name passes (fault A11)."""
    max_body_bytes: int = 10 * 2**20
    """Most bytes that a compressed body may unfold to."""
    parsers: frozenset[str] = DEFAULT
    """Families that are read. Other paths pass where `passthrough-parser` is among them, else their
    posts get 400, as from the reference; gRPC calls pass also beside a parser of such."""


ANY = Rules()


def plain_path(path: str) -> str:
    """The path without query, fragment and slashes at the end."""
    return path.partition("?")[0].partition("#")[0].rstrip("/") or "/"


def suffix_of(path: str, rules: Rules = ANY) -> str:
    """The longest known end of a plain path, by whole segments; empty where none is read."""
    segments = path.rsplit("/", _LONGEST)[1:]
    for number in range(len(segments)):
        suffix = "/" + "/".join(segments[number:])
        if suffix in FAMILIES:
            return suffix if FAMILIES[suffix] in rules.parsers else ""
    return ""


def work_bytes(arrival: Arrival, rules: Rules = ANY) -> int:
    """Bytes that `parse` may have to read: more than the body has where that is compressed."""
    size = len(arrival.body)
    if encodings.coding(arrival.headers.get("content-encoding", "")):
        return max(size, min(size * encodings.MAX_RATIO, rules.max_body_bytes))
    return size


def parse(arrival: Arrival, rules: Rules = ANY) -> Parsed:
    """Understand one request.

    Raises BadRequest for a known API that was not given what it takes, TooLarge and
    UnsupportedMedia for a compressed body that cannot be read.
    """
    parsed = _understood(arrival, rules)
    bounded = parsed.prompt.bounded() if parsed.prompt is not None else None
    return parsed if bounded is parsed.prompt else replace(parsed, prompt=bounded)


def _understood(arrival: Arrival, rules: Rules) -> Parsed:
    path = plain_path(arrival.path)
    suffix = suffix_of(path, rules)
    why = _unread(arrival, suffix)
    if not suffix and arrival.has_body and not _passes(arrival, rules):
        raise BadRequest("none of the configured parsers takes this path")
    if why:
        return passthrough.unscored(path, why)
    if suffix in FORMS:
        return media.form(path, arrival.headers["content-type"], arrival.body)
    coding = encodings.coding(arrival.headers.get("content-encoding", ""))
    return PARSERS[suffix](path, encodings.unfolded(arrival.body, coding, rules.max_body_bytes))


def _passes(arrival: Arrival, rules: Rules) -> bool:
    """Whether a body that nobody reads may pass: whoever takes calls takes health checks too."""
    if PASSTHROUGH in rules.parsers:
        return True
    return _is_call(_media_type(arrival)) and not rules.parsers.isdisjoint(CALLS.values())


def _media_type(arrival: Arrival) -> str:
    return arrival.headers.get("content-type", "").partition(";")[0].strip().lower()


def _is_call(media_type: str) -> bool:
    return media_type.partition("+")[0] == "application/grpc"


def _unread(arrival: Arrival, suffix: str) -> str:
    """Why a body is not read, in stable words; empty where it is. Raises BadRequest."""
    media_type = _media_type(arrival)
    is_json = media_type in {"", "application/json", "text/json"} or media_type.endswith("+json")
    why = ""
    if not suffix:
        why = "unknown path"
    elif arrival.method not in {"POST", ""}:
        why = "not a POST"
    elif arrival.body_hidden:
        why = "body not shown"
    elif suffix in CALLS:
        why = "" if _is_call(media_type) else "not a gRPC call"
    elif suffix in FORMS:
        why = "" if media_type == "multipart/form-data" else "not a form"
    elif not arrival.body and (is_json or not arrival.has_body):
        if suffix not in BODILESS:
            raise BadRequest(f"{NOT_JSON}the body is empty; {SEND}")
    elif not is_json:
        why = "not JSON"
    return why


def admit(model: str, rules: Rules) -> None:
    """Raises ModelNotFound for a model that nobody serves, by the name that the engine will read.

    Requests that name none pass (fault A11).
    """
    if model and rules.known_models and model not in rules.known_models:
        raise ModelNotFound(
            "the model is not served here; GET /v1/models lists those that are, and their names "
            "are compared letter by letter"
        )
