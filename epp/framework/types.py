"""Values that flow through a scheduling decision. All of them are immutable.

Nothing is keyed by an address: an address is an attribute of an endpoint, and an endpoint that
restarts is another incarnation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import NamedTuple, NewType, Self

from .quick import quick

PoolId = NewType("PoolId", str)
"""`namespace/name` of an InferencePool, or the configured name of a pool."""


class EndpointId(NamedTuple):
    """Opaque identity of one engine port: survives restarts, not the pod.

    A tuple, as an incarnation is: a decision looks both up some thirty times, and a tuple's hash
    costs a fifth of a dataclass's.
    """

    pool: PoolId
    name: str
    """Pod uid, or the configured name."""
    port: int

    def __str__(self) -> str:
        return f"{self.pool}|{self.name}|{self.port}"

    @classmethod
    def parse(cls, text: str) -> "EndpointId":
        """Read what `str` wrote. Raises ValueError on anything else."""
        pool, name, port = text.split("|")
        return cls(PoolId(pool), name, int(port))


class Incarnation(NamedTuple):
    """One life of an engine. Of two lives of one endpoint the later start wins."""

    endpoint: EndpointId
    start_ms: int
    """Engine start in milliseconds of Unix time; 0 when nobody has seen it yet."""


class Role(StrEnum):
    """Label `llm-d.ai/role`: which part of a request an endpoint takes, as the reference means it.

    Whoever serves decode also serves whole requests. The multimodal encode stage stands for itself.
    """

    serves_decode: bool
    """May be the destination of a request, split or whole."""
    serves_prefill: bool
    """May compute the prompt of a request that another endpoint decodes."""
    serves_encode: bool
    """May compute the media of a request for another endpoint."""

    def __new__(
        cls, label: str, decode: bool = False, prefill: bool = False, encode: bool = False
    ) -> Self:
        role = str.__new__(cls, label)
        role._value_ = label
        role.serves_decode = decode
        role.serves_prefill = prefill
        role.serves_encode = encode
        return role

    UNLABELLED = ("", True, False)
    """No label: whole requests, and never a part that others rely on."""
    DECODE = ("decode", True, False)
    PREFILL = ("prefill", False, True)
    ENCODE = ("encode", False, False, True)
    PREFILL_DECODE = ("prefill-decode", True, True)
    ENCODE_PREFILL = ("encode-prefill", False, True, True)
    ENCODE_PREFILL_DECODE = ("encode-prefill-decode", True, True, True)
    BOTH = ("both", True, True)
    """The older name of prefill-decode."""


class Source(StrEnum):
    """Where a match comes from."""

    PRECISE = "precise"
    """The engine's own KV events."""
    PREDICTED = "predicted"
    """What we routed there ourselves."""
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Match:
    """Leading tokens of a request that an endpoint holds in its KV cache."""

    tokens: int = 0
    """Whole own blocks only; never more than the prompt."""
    source: Source = Source.NONE
    trust: float = 1.0
    """0 to 1, what one of the tokens is worth: of predicted ones the share that turned out to be
    cached; of precise ones 1, less where loading them takes a part of the time that it saves."""
    loaded: tuple[tuple[str, int], ...] = ()
    """Those of the tokens that must be loaded first: by the name of the slower tier."""

    @property
    def credited_tokens(self) -> float:
        """Tokens that a decision may count on."""
        return self.tokens * self.trust

    def missing(self, prompt_tokens: int) -> float:
        """Tokens of a prompt that are left to compute, by what a decision may count on."""
        return max(0.0, prompt_tokens - max(0.0, self.credited_tokens))


NO_MATCH = Match()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """LoRA adapters of an engine, as it reports them."""

    running: frozenset[str] = frozenset()
    waiting: frozenset[str] = frozenset()
    most: int = 0
    """Adapters that fit at once."""
    base: str = ""
    """The model that they adapt, by the name that the engine serves it under; empty: not known."""


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What an endpoint has to do, as known at this instant.

    None means not known: never measured, stale, or not a finite number. Unknown is never best.
    """

    waiting: int | None = None
    """Requests that wait in the engine, as reported."""
    running: int | None = None
    kv_usage: float | None = None
    """Share of KV blocks in use by running requests, 0 to 1."""
    active_blocks: float | None = None
    """KV blocks in use by running requests, in engine blocks."""
    total_blocks: int | None = None
    """KV blocks that the engine has, in engine blocks."""
    block_tokens: int = 16
    """Tokens in one engine block."""
    lora: Lora | None = None
    """None where the engine says nothing of adapters, which is no fault (B03)."""
    age_s: float | None = None
    """Age of the report behind the fields above; None when there is none."""
    reserved_requests: int = 0
    """Requests that we sent there and that have not ended."""
    reserved_pending: int = 0
    """Those among them whose first token has not been seen: they wait or are in prefill."""
    reserved_prefill_tokens: int = 0
    """Uncached prompt tokens of the pending ones."""
    reserved_decode_blocks: int = 0
    """Decode blocks (engine blocks) of requests that no load report shows yet."""

    @property
    def queue(self) -> int | None:
        """Requests ahead of a new one: the engine's own count or ours, whichever is larger.

        The two overlap (a pending request of ours may wait in the engine), so they are never
        added. None when the engine's count is unknown and we have nothing pending there.
        """
        if self.waiting is None:
            return self.reserved_pending or None
        return max(self.waiting, self.reserved_pending)


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """How fast an engine works, as observed; the defaults are safe priors for one 8B model on one
    current GPU, and matter only relative to each other until something was observed."""

    prefill_tokens_per_s: float = 8000.0
    decode_s_per_token: float = 0.02
    """Time of one step with one running answer."""
    decode_s_per_block: float = 2e-6
    """What each KV block in use adds to a step: attention reads all of them."""
    load_tokens_per_s: float = 200_000.0
    """KV that comes back from a slower tier of the same pod."""
    pull_tokens_per_s: float = 100_000.0
    """KV that comes from another pod."""
    pull_s: float = 0.01
    """What a handoff costs however short the prompt is."""


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One candidate as the state path saw it when the request arrived."""

    id: EndpointId
    address: str
    """`ip:port`, IPv6 in brackets: where the gateway sends the request."""
    incarnation: Incarnation
    role: Role = Role.UNLABELLED
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    has_sidecar: bool = True
    """Whether somebody stands before its engine who can hand a prompt over to another endpoint."""
    load: Load = Load()
    match: Match = NO_MATCH
    speeds: Speeds = Speeds()


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One inference request, parsed and hashed, before an endpoint is chosen."""

    id: str
    """Our own unique name of this decision, never the client's."""
    api: str
    """Name of the parser that understood it, `passthrough` when none did."""
    path: str
    model: str = ""
    """The client's word."""
    target_model: str = ""
    """What the engine is asked for; differs from `model` where a name was rewritten."""
    rewritten_by: str = ""
    """Whose word the target is: `header`, or the InferenceModelRewrite whose rule fits, which may
    leave the name as it is; empty: the client's own."""
    fairness_id: str = "default-flow"
    objective: str = ""
    """Name of an InferenceObjective, as the gateway said."""
    priority: int = 0
    """Of the objective; below 0 may be shed."""
    prompt_tokens: int = 0
    """Exact when `exact`, else estimated from bytes."""
    media_tokens: int = 0
    """Those of the prompt that stand for images, audio and video: a guess."""
    media: tuple[tuple[int, int], ...] = ()
    """Different images, audio and video, a bounded number of them: a digest of each as the client
    wrote it, and bytes of its embeddings, above 0 and a guess."""
    media_held: Mapping[EndpointId, int] = field(default_factory=dict[EndpointId, int])
    """Bytes of `media` that an endpoint probably holds, as `mm-embeddings-cache-producer` says;
    endpoints that hold none are left out."""
    twins: Mapping[EndpointId, int] = field(default_factory=dict[EndpointId, int])
    """Requests of the same whole blocks within the last seconds, by the endpoint that they were
    given to; endpoints that were given none are left out."""
    output_tokens: int = 0
    """Expected upper bound of the answer: the request's own limit or a default."""
    exact: bool = False
    """Whether the tokens are the engine's own."""
    keys: tuple[int, ...] = ()
    """Block keys of the full own blocks of the prompt, first block first."""
    block_size: int = 64
    """Tokens in one own block."""
    scored: bool = True
    """False when we route by load alone: no prompt, or a body that no parser knows."""
    whole: str = "api"
    """Why one engine must compute all of it, as a stable word; empty where two may share it."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """As the gateway received them, lower-case names. A plugin must not log or keep their values
    beyond what it exists for."""
    session: str = ""
    """Of the client, as `session-id-producer` reads it; empty: none, or nobody asked for it."""
    slo_ttft_s: float | None = None
    """Time from `at` within which the answer should begin, as the gateway said; None: no limit."""
    slo_tpot_s: float | None = None
    """Likewise the time from one token of the answer to the next."""
    timeout_s: float | None = None
    """Time from `at` until the gateway gives the request up, as it said; None: it did not."""
    at: float = 0.0
    """When it arrived, on the picker's monotonic clock, seconds."""
    attempt: int = 1
    """More than 1 where the gateway sends it again; `slo_ttft_s` is what is left of the time."""
    failed_at: tuple[EndpointId, ...] = ()
    """Who failed earlier attempts; they are no candidates as long as there are others."""
    peer: "Endpoint | None" = None
    """The destination, where a profile chooses who works for it; who computes the prompt, where
    the destination is chosen after that one (`prefilled`); else None."""
    prefilled: bool = False
    """`peer` computes the prompt for the candidates."""

    @property
    def blocks(self) -> int:
        return len(self.keys)


class Rung(IntEnum):
    """Step of the degradation ladder that a decision stood on; lower is better."""

    PRECISE = 0
    PREDICTED = 1
    LOAD_ONLY = 2
    ANY_READY = 3


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """One candidate's numbers in a decision."""

    endpoint: EndpointId
    address: str
    total: float
    scores: Mapping[str, float]
    """Raw score of each scorer by its name, 0 to 1, before the weight."""
    match: Match = NO_MATCH
    queue: int | None = None


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A part of a request that others may do in place of the first chosen: who, or why nobody."""

    why: str = "never"
    """`split` where others do it, else why not: a stable word."""
    chosen: tuple[Endpoint, ...] = ()
    """Who does it, best first; empty where nobody else does."""
    decider: str = ""
    """Who says `split` or not where no rule does; empty: nobody."""
    profile: str = ""
    table: Sequence[ScoreRow] = ()
    """Also of those who would have done it, where a decider compared them and said no."""
    excluded: tuple[tuple[str, str], ...] = ()
    """As `Decision.excluded`, among those that the gateway allows; `destination` is who would hand
    over."""
    left_out: Mapping[str, int] = field(default_factory=dict[str, int])
    weights: Mapping[str, float] = field(default_factory=dict[str, float])


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Where a request goes and why. The only source of metrics, logs and `/debug/decisions`."""

    request_id: str
    chosen: tuple[Endpoint, ...]
    """Best first; the gateway falls back down the list."""
    rung: Rung
    reasons: tuple[str, ...]
    """Short stable words with values, most important first, for people and for tests."""
    table: Sequence[ScoreRow] = ()
    """The chosen, then the best others; the rows are built when they are read."""
    excluded: tuple[tuple[str, str], ...] = ()
    """Address, and why it was none of the candidates: the name of a filter, `not ready`, `subset`
    (the gateway does not allow it) or `role`. The first of each."""
    left_out: Mapping[str, int] = field(default_factory=dict[str, int])
    """How many each of these left out, in the order of the steps."""
    plan: str = ""
    """Where the configuration comes from that was in force: a file, or `default`."""
    handler: str = ""
    """Name of the profile handler that chose the profiles."""
    profile: str = "default"
    weights: Mapping[str, float] = field(default_factory=dict[str, float])
    prefilling: Stage = Stage()
    """Who may compute the prompt, each of them all of it."""
    encoding: Stage = Stage()
    """Who computes the images, audio and video, in turns."""

    @property
    def prefill(self) -> tuple[Endpoint, ...]:
        return self.prefilling.chosen

    @property
    def encode(self) -> tuple[Endpoint, ...]:
        return self.encoding.chosen

    @property
    def split(self) -> str:
        """Why the prompt is computed elsewhere (`split`) or not."""
        return self.prefilling.why
