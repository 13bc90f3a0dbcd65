"""Find the parser of a request by its path, and what must hold before a body is parsed.

A path is known by its last segments, without the query and without a slash at the end (fault A09);
of several that fit the longest wins. What is not a JSON body posted to a known path passes
unscored: GETs (A02), forms (A16), and every path that we do not know.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from epp.errors import BadRequest, ModelNotFound
from epp.request.exchange import Arrival

from . import encodings, generate, light, media, messages, openai, passthrough, pooled, responses
from .prompt import Parsed
from .reading import NOT_JSON

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
}
"""Last segments of a path: the parser of its JSON bodies."""

FORMS = frozenset(
    {"/audio/transcriptions", "/audio/translations", "/images/edits", "/images/variations"}
)
"""Last segments of the paths that take forms."""

ANTHROPIC, OPENAI, VLLM = "anthropic-parser", "openai-parser", "vllmhttp-parser"
PASSTHROUGH = "passthrough-parser"
FAMILIES: dict[str, str] = {
    suffix: ANTHROPIC if suffix.startswith("/v1/messages") else OPENAI
    for suffix in (*PARSERS, *FORMS)
} | dict.fromkeys(
    (
        "/inference/v1/generate",
        "/tokenize",
        "/detokenize",
        "/pooling",
        "/classify",
        "/v2/embed",
        "/score",
        "/rerank",
    ),
    VLLM,
)
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
    parsers: frozenset[str] | None = None
    """Families that a configuration chose; None: all. Other paths pass where `passthrough-parser`
    is among them, else their posts get 400, as from the reference."""

    def reads(self, suffix: str) -> bool:
        """Whether a known path is read at all."""
        return self.parsers is None or FAMILIES[suffix] in self.parsers

    @property
    def passes(self) -> bool:
        """Whether posts to paths that nobody reads pass."""
        return self.parsers is None or PASSTHROUGH in self.parsers


ANY = Rules()


def plain_path(path: str) -> str:
    """The path without query, fragment and slashes at the end."""
    return path.partition("?")[0].partition("#")[0].rstrip("/") or "/"


def suffix_of(path: str) -> str:
    """The longest known end of a plain path, by whole segments; empty where none is known."""
    segments = path.rsplit("/", _LONGEST)[1:]
    for number in range(len(segments)):
        suffix = "/" + "/".join(segments[number:])
        if suffix in PARSERS or suffix in FORMS:
            return suffix
    return ""


def work_bytes(arrival: Arrival, rules: Rules = ANY) -> int:
    """Bytes that `parse` may have to read: more than the body has where that is compressed."""
    size = len(arrival.body)
    if encodings.coding(arrival.headers.get("content-encoding", "")):
        return max(size, min(size * encodings.MAX_RATIO, rules.max_body_bytes))
    return size


def parse(arrival: Arrival, rules: Rules = ANY) -> Parsed:
    """Understand one request.

    Raises BadRequest for a known API that was not given JSON for it, TooLarge and UnsupportedMedia
    for a compressed body that cannot be read.
    """
    parsed = _understood(arrival, rules)
    bounded = parsed.prompt.bounded() if parsed.prompt is not None else None
    return parsed if bounded is parsed.prompt else replace(parsed, prompt=bounded)


def _understood(arrival: Arrival, rules: Rules) -> Parsed:
    path = plain_path(arrival.path)
    suffix = suffix_of(path)
    if suffix and not rules.reads(suffix):
        suffix = ""
    why = _unread(arrival, suffix)
    if not suffix and not rules.passes and arrival.has_body:
        raise BadRequest("none of the configured parsers takes this path")
    if why:
        return passthrough.unscored(path, why)
    if suffix in FORMS:
        return media.form(path, arrival.headers["content-type"], arrival.body)
    coding = encodings.coding(arrival.headers.get("content-encoding", ""))
    return PARSERS[suffix](path, encodings.unfolded(arrival.body, coding, rules.max_body_bytes))


def _unread(arrival: Arrival, suffix: str) -> str:
    """Why a body is not read, in stable words; empty where it is. Raises BadRequest."""
    media_type = arrival.headers.get("content-type", "").partition(";")[0].strip().lower()
    is_json = media_type in {"", "application/json", "text/json"} or media_type.endswith("+json")
    why = ""
    if not suffix:
        why = "unknown path"
    elif arrival.method not in {"POST", ""}:
        why = "not a POST"
    elif arrival.body_hidden:
        why = "body not shown"
    elif suffix in FORMS:
        why = "" if media_type == "multipart/form-data" else "not a form"
    elif not arrival.body and (is_json or not arrival.has_body):
        if suffix not in BODILESS:
            raise BadRequest(f"{NOT_JSON}the body is empty; send a JSON object with a `model`")
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
