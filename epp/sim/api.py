"""Request bodies of the engine's HTTP API: bytes in, a checked `Ask` out. Pure.

Here are OpenAI's completions and chats, and what all APIs share. Unknown fields are ignored and
errors have the shape and status that vLLM gives them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, TypeVar

import msgspec
from xxhash import xxh3_64_intdigest

from epp.bodies.sharing import Api
from epp.errors import EppError
from epp.sim import meetings
from epp.sim.hashing import NO_NAMESPACE, Namespace
from epp.sim.media import KINDS, TOKENS, Content, Peer, items_of
from epp.sim.settings import EngineSettings
from epp.sim.tokenizer import PLACEHOLDER, encode, render_chat
from epp.sim.transfer import NO_TRANSFER, PullAsk, Transfer, read_params

MAX_PROMPTS = 64
"""Prompts in one completion request."""
MAX_CHOICES = 16
"""Answers to each prompt."""
DEFAULT_COMPLETION_TOKENS = 16
_TEXTS = frozenset({"text", "input_text", "output_text"})
"""Types of content parts that are text."""

TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Body = TypeVar("Body")


class ApiError(EppError):
    """A request that the engine refuses; `status` is this error's own."""

    reason: ClassVar[str] = "refused"

    def __init__(self, status: int, kind: str, sentence: str, param: str | None = None) -> None:
        super().__init__(sentence)
        self.code = status
        self.kind = kind
        self.param = param

    def body(self) -> bytes:
        """OpenAI-shaped."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})


def bad_request(sentence: str, param: str | None = None) -> ApiError:
    return ApiError(400, "BadRequestError", sentence, param)


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = False


class Wire(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that requests of every API have."""

    model: str | None = None
    stream: bool | None = False
    cache_salt: str | None = None
    kv_transfer_params: dict[str, object] | None = None
    vllm_xargs: dict[str, str | int | float | list[str | int | float]] | None = None
    bootstrap_host: str | None = None
    bootstrap_port: int | None = None
    bootstrap_room: int | None = None
    ec_transfer_params: dict[str, Peer] | None = None

    @property
    def room(self) -> meetings.Room | None:
        """SGLang's meeting place, if the body names one whole."""
        host, port, room = self.bootstrap_host, self.bootstrap_port, self.bootstrap_room
        if host is None or port is None or room is None:
            return None
        return meetings.Room(host, port, room)

    @property
    def transfer_params(self) -> object:
        """The parameters of a handoff as they reach the engine: extra arguments may bring them."""
        return self.kv_transfer_params or (self.vllm_xargs or {}).get("kv_transfer_params")


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How an answer is sampled, where an API lets a client say so."""

    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)] | None = 1
    max_tokens: Positive | None = None
    min_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = 0
    ignore_eos: bool | None = False


class _OpenAi(Wire, frozen=True, kw_only=True):
    stream_options: StreamOptions | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)] | None = 1
    max_tokens: Positive | None = None
    min_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = 0
    ignore_eos: bool | None = False
    return_token_ids: bool | None = False
    cache_hit_threshold: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None

    def sampling(self, max_tokens: int | None) -> Sampling:
        """`max_tokens`: the limit that counts."""
        return Sampling(
            n=self.n,
            max_tokens=max_tokens,
            min_tokens=self.min_tokens,
            ignore_eos=self.ignore_eos,
        )


class CompletionBody(_OpenAi, frozen=True, kw_only=True):
    prompt: str | list[str | TokenId | list[TokenId]]


class Message(msgspec.Struct, frozen=True):
    role: str
    content: Content = None


class ChatBody(_OpenAi, frozen=True, kw_only=True):
    messages: list[Message]
    max_completion_tokens: Positive | None = None
    tools: list[dict[str, object]] | None = None
    add_generation_prompt: bool = True


class TokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: list[dict[str, object]] | None = None
    add_generation_prompt: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One checked request."""

    api: Api
    model: str
    prompts: tuple[list[int], ...]
    choices: int
    """Answers to each prompt."""
    limits: tuple[int, ...]
    """Tokens of an answer, for each prompt."""
    ends_by_itself: bool
    namespace: Namespace
    stream: bool
    include_usage: bool = False
    return_token_ids: bool = False
    transfer: Transfer = NO_TRANSFER
    embeddings: Mapping[str, Peer] = field(default_factory=dict)
    """Where it says that theirs are to be had."""
    least_cached: float = 0.0
    """Share of the prompt that must be cached, or the engine refuses to compute it."""

    @property
    def media(self) -> tuple[str, ...]:
        """Names of the images, audio and video in it, each once."""
        return tuple(dict.fromkeys(item.name for item in self.namespace.media))


def parse_completion(body: bytes, settings: EngineSettings) -> Ask:
    """Read a body of `/v1/completions`. Raises ApiError."""
    wire = decoded(body, CompletionBody)
    limit = wire.max_tokens or DEFAULT_COMPLETION_TOKENS
    return _openai(Api.COMPLETIONS, wire, settings, _prompts(wire.prompt), limit)


def parse_chat(body: bytes, settings: EngineSettings) -> Ask:
    """Read a body of `/v1/chat/completions`. Raises ApiError."""
    wire = decoded(body, ChatBody)
    if not wire.messages:
        raise bad_request("messages must not be empty", "messages")
    prompt = _chat_tokens(wire)
    limit = wire.max_completion_tokens or wire.max_tokens
    ask = _openai(Api.CHAT, wire, settings, (prompt,), limit)
    return with_media(ask, (message.content for message in wire.messages))


def offered_to(body: bytes) -> PullAsk | None:
    """Blocks elsewhere that a refused request would have pulled: nobody else will read them."""
    try:
        wire = msgspec.json.decode(body, type=Wire)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return read_params(wire.transfer_params).pull


def tokenize(body: bytes, settings: EngineSettings) -> bytes:
    """Answer of `/tokenize` to a prompt or to messages. Raises ApiError."""
    wire = decoded(body, TokenizeBody)
    _served(wire.model, settings)
    if (wire.prompt is None) == (not wire.messages):
        raise bad_request("give either prompt or messages")
    tokens = _chat_tokens(wire) if wire.messages else encode(wire.prompt or "")
    limit = settings.context_tokens
    answer = {"count": len(tokens), "max_model_len": limit, "tokens": tokens, "token_strs": None}
    return msgspec.json.encode(answer)


def natural_tokens(prompt: list[int], room: int) -> int:
    """Length of an answer whose request sets no limit: 16 to 143 tokens, fixed by the prompt."""
    return min(room, 16 + xxh3_64_intdigest(msgspec.msgpack.encode(prompt)) % 128)


def _openai(
    api: Api,
    wire: CompletionBody | ChatBody,
    settings: EngineSettings,
    prompts: tuple[list[int], ...],
    max_tokens: int | None,
) -> Ask:
    options = wire.stream_options
    if options is not None and not wire.stream:
        raise bad_request("Stream options can only be defined when `stream=True`.")
    return replace(
        ask_of(api, wire, settings, prompts, wire.sampling(max_tokens)),
        include_usage=bool(options and options.include_usage),
        return_token_ids=bool(wire.return_token_ids),
        least_cached=wire.cache_hit_threshold or 0.0,
    )


def ask_of(
    api: Api,
    wire: Wire,
    settings: EngineSettings,
    prompts: tuple[list[int], ...],
    sampling: Sampling,
) -> Ask:
    """What an API has in common with the others. Raises ApiError."""
    model, lora = _served(wire.model, settings)
    least, most = sampling.min_tokens or 0, sampling.max_tokens
    if most is not None and least > most:
        raise bad_request(
            f"min_tokens must be less than or equal to max_tokens={most}, got {least}."
        )
    ends_by_itself = most is None and not sampling.ignore_eos
    transfer = _transfer(wire, settings)
    limits = tuple(_limit(p, settings, most, least, ends_by_itself) for p in prompts)
    if settings.kv_connector == "sglang" and transfer.offer:
        limits = (1,) * len(limits)  # in prefill mode an engine stops there, whatever is asked for
    salted = bool(lora or wire.cache_salt)
    return Ask(
        api=api,
        model=model,
        prompts=prompts,
        choices=sampling.n or 1,
        limits=limits,
        ends_by_itself=ends_by_itself,
        namespace=Namespace(lora, wire.cache_salt or "") if salted else NO_NAMESPACE,
        stream=bool(wire.stream),
        transfer=transfer,
        embeddings=wire.ec_transfer_params or {},
    )


def _transfer(wire: Wire, settings: EngineSettings) -> Transfer:
    """What the engine's connector makes of a request."""
    role = settings.kv_role
    if role is None:
        return NO_TRANSFER
    if settings.kv_connector == "shared-storage":
        return Transfer(offer=role != "consumer")
    if settings.kv_connector != "sglang":
        return _READERS[settings.kv_connector](wire.transfer_params)
    if wire.room is not None:
        return meetings.sglang(wire.room, prefills=role != "consumer")
    if role == "consumer":
        raise bad_request("Disaggregated request received without bootstrap room id.")
    return NO_TRANSFER


_READERS: Mapping[str, Callable[[object], Transfer]] = {
    "nixlv2": read_params,
    "mooncake": meetings.mooncake,
    "offloading": meetings.offloading,
}


def _limit(
    prompt: list[int], settings: EngineSettings, asked: int | None, least: int, natural: bool
) -> int:
    room = settings.context_tokens - len(prompt)
    wanted = asked if asked is not None else max(1, least)
    if wanted > room:
        raise bad_request(
            f"This model's maximum context length is {settings.context_tokens} tokens. However, "
            f"you requested {len(prompt) + wanted} tokens ({len(prompt)} in the prompt, {wanted} "
            "in the completion). Please reduce the length of the prompt or of the completion."
        )
    if asked is not None:
        return asked
    return max(least, natural_tokens(prompt, room)) if natural else room


def _prompts(prompt: str | list[str | int | list[int]]) -> tuple[list[int], ...]:
    if isinstance(prompt, str):
        prompt = [prompt]
    ids = [one for one in prompt if isinstance(one, int)]
    if ids:
        if len(ids) != len(prompt):
            raise bad_request("prompt must not mix token ids with texts or lists", "prompt")
        return (ids,)
    if len(prompt) > MAX_PROMPTS:
        raise bad_request(f"at most {MAX_PROMPTS} prompts", "prompt")
    many = [encode(one) if isinstance(one, str) else one for one in prompt]
    prompts = tuple(one for one in many if isinstance(one, list))
    if not prompts or not all(prompts):
        raise bad_request("prompt must not be empty", "prompt")
    return prompts


def _chat_tokens(wire: ChatBody | TokenizeBody) -> list[int]:
    messages = [(message.role, tokens_of(message.content)) for message in wire.messages or ()]
    tools = msgspec.json.encode(wire.tools).decode() if wire.tools else ""
    return render_chat(messages, tools=tools, add_generation_prompt=wire.add_generation_prompt)


def tokens_of(content: Content) -> list[int]:
    """The tokens of a message's content: of its text, and those that stand for what is none.

    Raises ApiError for parts of other types.
    """
    if content is None or isinstance(content, str):
        return encode(content or "")
    tokens: list[int] = []
    after_text = False
    for part in content:
        text = part.get("text")
        if part.get("type") in KINDS:
            tokens += [PLACEHOLDER] * TOKENS
        elif part.get("type") in _TEXTS and isinstance(text, str):
            tokens += encode(f"\n{text}" if after_text else text)
        else:
            raise bad_request("content parts must be text, image, audio or video", "messages")
        after_text = part.get("type") in _TEXTS
    return tokens


def with_media(ask: Ask, contents: Iterable[Content]) -> Ask:
    """A request of one prompt with what its contents have beside text."""
    items = items_of(ask.prompts[0], contents)
    return replace(ask, namespace=replace(ask.namespace, media=items)) if items else ask


def _served(model: str | None, settings: EngineSettings) -> tuple[str, str]:
    """Name to answer with, and the adapter. The model may be left out, as in vLLM."""
    if model is None or model == settings.model:
        return settings.model, ""
    if model in settings.loras:
        return model, model
    raise ApiError(404, "NotFoundError", f"The model `{model}` does not exist.", "model")


def decoded(body: bytes, kind: type[Body]) -> Body:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"The request body is not valid: {error}") from error
