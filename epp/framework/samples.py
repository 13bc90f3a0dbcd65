"""Requests and endpoints at random, ordinary and odd ones, for trying plugins out."""

from random import Random

from .types import (
    Endpoint,
    EndpointId,
    Incarnation,
    Load,
    Lora,
    Match,
    PoolId,
    Request,
    Role,
    Source,
    Speeds,
)

POOL = PoolId("pool")
_HEADERS: tuple[dict[str, str], ...] = (
    {},
    {"x-session-id": "one", "x-zone": "a", "x-session-token": "cG9kLTE6ODAwMA=="},
    {"x-session-id": "two", "x-session-token": "%%%", "x-preferred-zone": "b", "cookie": "a=b; c"},
    {"x-session-token": "A" * 4000, "x-session-id": " ", "epp-profile": "prefill"},
)
_PLACES = ("kubernetes.io/hostname", "topology.kubernetes.io/rack", "topology.kubernetes.io/zone")
_RANGES = ("0-512", "512-8192", "0-1000000", "640-640", "odd", "9-1", "")


def request(draws: Random, number: int = 0) -> Request:
    """A request; its id has the number."""
    blocks = draws.choice((0, 1, 10, 200))
    tokens = draws.choice((0, blocks * 64, blocks * 64 + 63, 10**7))
    return Request(
        id=f"request-{number}",
        api=draws.choice(("completions", "chat", "passthrough")),
        path="/v1/completions",
        model=draws.choice(("", "model", "adapter")),
        target_model=draws.choice(("", "model")),
        priority=draws.choice((-1, 0, 5)),
        prompt_tokens=tokens,
        output_tokens=draws.choice((0, 1, 256, 10**6)),
        exact=draws.random() < 0.5,
        keys=tuple(draws.getrandbits(64) for _ in range(blocks)),
        scored=draws.random() < 0.8,
        whole=draws.choice(("", "", "api")),
        headers=draws.choice(_HEADERS),
        session=draws.choice(("", "one")),
        at=draws.choice((0.0, 12.5, 1e9)),
    )


def endpoint(draws: Random, number: int) -> Endpoint:
    """An endpoint; its name and address have the number."""
    ident = EndpointId(POOL, f"pod-{number}", 8000 + number % 2)
    return Endpoint(
        id=ident,
        address=f"10.0.{number // 250}.{number % 250 + 1}:{ident.port}",
        incarnation=Incarnation(ident, draws.choice((0, 1_700_000_000_000))),
        role=draws.choice(list(Role)),
        labels=_labels(draws),
        has_sidecar=draws.random() < 0.8,
        load=draws.choice((Load(), _load(draws), _load(draws))),
        match=_match(draws),
        speeds=draws.choice((Speeds(), Speeds(prefill_tokens_per_s=1.0, decode_s_per_token=10.0))),
    )


def endpoints(draws: Random, count: int) -> list[Endpoint]:
    """Different ones, at times all with the same load and match."""
    made = [endpoint(draws, number) for number in range(count)]
    if draws.random() < 0.2:
        load, match = _load(draws), _match(draws)
        made = [_alike(one, load, match) for one in made]
    return made


def _alike(one: Endpoint, load: Load, match: Match) -> Endpoint:
    return Endpoint(
        id=one.id, address=one.address, incarnation=one.incarnation, load=load, match=match
    )


def _labels(draws: Random) -> dict[str, str]:
    labels = {place: draws.choice(("", "a", "b")) for place in _PLACES if draws.random() < 0.7}
    if draws.random() < 0.5:
        labels["llm-d.ai/context-length-range"] = draws.choice(_RANGES)
    if draws.random() < 0.5:
        labels["llm-d.ai/role"] = draws.choice(list(Role)).value
    return labels


def _match(draws: Random) -> Match:
    tokens = draws.choice((0, 0, 64, 640, 10**6))
    return Match(tokens, draws.choice(list(Source)) if tokens else Source.NONE, draws.random())


def _load(draws: Random) -> Load:
    def count(most: int) -> int:
        return draws.choice((0, 1, draws.randrange(most), most))

    def maybe(value: float) -> float | None:
        return None if draws.random() < 0.2 else value

    waiting, running = maybe(count(1000)), maybe(count(1000))
    total = count(1_000_000)
    return Load(
        waiting=None if waiting is None else int(waiting),
        running=None if running is None else int(running),
        kv_usage=maybe(draws.choice((0.0, draws.random(), 1.0))),
        active_blocks=maybe(float(count(total + 1))),
        total_blocks=draws.choice((None, 0, total)),
        block_tokens=draws.choice((1, 16, 64)),
        lora=_lora(draws),
        age_s=maybe(draws.uniform(0.0, 1e5)),
        reserved_requests=count(1000),
        reserved_pending=count(1000),
        reserved_prefill_tokens=count(10**9),
        reserved_decode_blocks=count(10**6),
    )


def _lora(draws: Random) -> Lora | None:
    if draws.random() < 0.5:
        return None
    names = ("adapter", "other", "third")
    running = frozenset(draws.sample(names, draws.randint(0, 3)))
    waiting = frozenset(draws.sample(names, draws.randint(0, 2)))
    return Lora(running=running, waiting=waiting, most=draws.randint(0, 4), base="model")
