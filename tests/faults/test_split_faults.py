"""Field faults of the split between prefill and decode, on the picker's side."""

from collections import Counter
from typing import Any

import pytest
import structlog

from epp import protocol
from epp._pb import extproc_pb2 as pb
from epp.control.files import parse_endpoints
from epp.errors import NoEndpoint
from epp.framework import Role, Rung
from epp.observe.alarm import QUIET_S, SplitAlarm
from epp.request import replies
from epp.request.exchange import Route
from epp.state.endpoints import Member
from sidecar.transfer import targets
from tests.fakes.desk import POOL, Desk, ask, open_desk
from tests.fakes.plans import default_built

D, P = Role.DECODE, Role.PREFILL
LONG = list(range(2000))


def candidates(route: Route) -> str:
    return dict(route.set_headers).get(protocol.PREFILLER, "")


def life(desk: Desk, number: int) -> Any:
    return desk.pool.endpoints.incarnation(desk.members[number].id)


async def keys_of(desk: Desk, tokens: list[int]) -> tuple[int, ...]:
    probe = await desk.route(ask(tokens))
    probe.progress.reset(answered=False)
    return desk.witness.decisions[-1][1].keys


def pass_on(desk: Desk) -> None:
    """So long that nobody counts the next request as one of a burst; all are idle."""
    desk.now += 60.0
    desk.report([0] * len(desk.members))


async def test_B15_a_prefill_pod_is_busy_for_its_prefill_and_a_decode_pod_for_the_answer() -> None:
    """Protected by `PoolState._end_leg`, called at the answer's headers. Red when the leg ends with
    the request only (`finished`): 31 s instead of 1 s; red as well when `charge` puts the prompt's
    tokens on the decode pod."""
    busy: Counter[str] = Counter()
    async with open_desk(roles=[D, P]) as desk:
        progress = (await desk.route(ask(LONG))).progress
        for half_seconds in range(64):
            desk.now = 1000.0 + half_seconds / 2
            if half_seconds == 2:
                progress.response_headers(200, None)
                progress.body(1)
            if half_seconds == 62:
                progress.finished()
            desk.pool.tick(desk.now)
            for pod in desk.pool.ready(desk.now):
                busy[f"{pod.id.name} requests"] += pod.load.reserved_requests
                busy[f"{pod.id.name} tokens"] += pod.load.reserved_prefill_tokens
    assert busy == {
        "pod-0 requests": 62,
        "pod-0 tokens": 0,
        "pod-1 requests": 2,
        "pod-1 tokens": 2 * 2000,
    }


async def test_B15_each_half_is_given_back_where_it_was_taken_whatever_the_order() -> None:
    """Protected by the name of its own that `charge` gives the leg (`leg_of`). Red when both halves
    are reserved under the request's id: the second is refused, and the prefill pod looks idle."""
    async with open_desk(roles=[D, P, P]) as desk:
        routes = [await desk.route(ask([number, *LONG])) for number in range(8)]
        shares = [pod.load.reserved_requests for pod in desk.pool.ready(desk.now)]
        assert shares == [8, 4, 4]
        for route in reversed(routes):
            route.progress.response_headers(200, None)
            route.progress.finished()
        loads = [pod.load for pod in desk.pool.ready(desk.now)]
        assert [(load.reserved_requests, load.reserved_prefill_tokens) for load in loads] == [
            (0, 0)
        ] * 3


@pytest.mark.parametrize(
    ("tokens", "held", "why"),
    [
        (400, 0, "below-threshold"),
        (2000, 30, "cached"),  # 1920 tokens: 96 %
        (2000, 0, "split"),
        (2000, 20, "split"),
    ],
)
async def test_B24_only_what_the_decode_pod_lacks_is_worth_a_split(
    tokens: int, held: int, why: str
) -> None:
    """Protected by `PrefixBasedPd`. Red when it compares the whole prompt with the threshold: the
    cached one goes through prefill."""
    async with open_desk(roles=[D, P]) as desk:
        prompt = list(range(tokens))
        desk.index.store(life(desk, 0), (await keys_of(desk, prompt))[:held])
        route = await desk.route(ask(prompt))
        assert desk.witness.last.split == why
        assert bool(candidates(route)) == (why == "split")
        prefill = desk.pool.ready(desk.now)[1].load
        assert prefill.reserved_requests == (why == "split")


async def test_B24_an_index_that_is_down_or_a_guess_of_the_tokens_splits_nothing() -> None:
    """Protected by the checks of `scored` and `exact` in `PrefixBasedPd`. Red without them: text
    of 80,000 bytes counts as 20,000 tokens, and a failed look-up as nothing cached."""
    async with open_desk(roles=[D, P]) as desk:
        assert not candidates(await desk.route(ask("text " * 16_000)))
        assert desk.witness.last.split == "tokens-estimated"

        def fail(*_: object, **__: object) -> None:
            raise KeyError("index")

        desk.pool.candidates = fail  # type: ignore[method-assign, assignment]
        assert not candidates(await desk.route(ask(LONG)))
        assert (desk.witness.last.split, desk.witness.last.rung) == ("load-only", Rung.LOAD_ONLY)


async def test_C22_what_a_prefill_pod_holds_chooses_among_prefill_pods_only() -> None:
    """Protected by `filters`: each role is rated among its own. Red when `director._by_prefix`
    rates all eligible endpoints together: the warm prefill pod becomes the destination."""
    shares: Counter[str] = Counter()
    async with open_desk(roles=[D, D, P, P, P]) as desk:
        keys = await keys_of(desk, LONG)
        desk.index.store(life(desk, 3), keys)
        for _ in range(40):
            route = await desk.route(ask(LONG))
            shares[route.destination] += 1
            assert candidates(route).split(",")[0] == "10.0.0.3:8000"
            route.progress.reset(answered=False)
            pass_on(desk)
    assert set(shares) == {"10.0.0.0:8000", "10.0.0.1:8000"}
    assert min(shares.values()) >= 8


async def test_C22_what_a_decode_pod_holds_is_no_credit_for_prefill() -> None:
    """Protected like the test above; red when prefill pods are rated by the destination's match."""
    async with open_desk(roles=[D, D, P, P]) as desk:
        keys = await keys_of(desk, LONG)
        desk.index.store(life(desk, 1), keys[:20])
        firsts = set()
        for _ in range(40):
            route = await desk.route(ask(LONG))
            assert route.destination == "10.0.0.1:8000"
            firsts.add(candidates(route).split(",")[0])
            route.progress.reset(answered=False)
            pass_on(desk)
    assert firsts == {"10.0.0.2:8000", "10.0.0.3:8000"}


def alarmed(desk: Desk) -> SplitAlarm:
    def has_roles() -> bool:
        return any(member.role is not Role.UNLABELLED for member in desk.pool.endpoints)

    alarm = SplitAlarm(has_roles=has_roles, clock=desk.clock)
    desk.director._observers = (desk.witness, alarm)
    return alarm


@pytest.mark.parametrize(
    ("path", "body", "split"),
    [
        ("/v1/completions", ask(LONG), True),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}, True),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 9}, True),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}, True),
        ("/inference/v1/generate", {"token_ids": LONG}, True),
        ("/v1/embeddings", {"input": "hi"}, False),
        ("/v1/messages/count_tokens", {"messages": []}, False),
        ("/tokenize", {"prompt": "hi"}, False),
        ("/rerank", {"query": "hi", "documents": []}, False),
    ],
)
async def test_D04_every_generative_api_is_split_and_no_other(
    path: str, body: dict[str, Any], *, split: bool
) -> None:
    """Protected by `Parsed.whole`, which says no unless an API's parser knows better. Red when it
    says yes: the sidecar would be asked to hand over what it knows no limits of."""
    async with open_desk(roles=[D, P], split="always") as desk:
        route = await desk.route({"model": "m", **body}, path=path)
        assert bool(candidates(route)) == split
        assert desk.witness.last.split == ("split" if split else "not-splittable")


@pytest.mark.parametrize("state", ["not ready", "label missing", "gone"])
async def test_D07_nobody_to_prefill_is_served_counted_and_told_at_a_limited_rate(
    state: str,
) -> None:
    """Protected by `SplitAlarm.decided` and by the reason `no-prefill-pods`. Red without the limit:
    a line for each request."""
    roles = [D, D] if state == "label missing" else [D, P]
    with structlog.testing.capture_logs() as logs:
        async with open_desk(roles=roles) as desk:
            alarmed(desk)
            if state == "not ready":
                desk.pool.endpoints.set_ready(desk.members[1].id, False, desk.now)
            if state == "gone":
                desk.pool.replace(desk.members[:1], desk.now)
            for number in range(30):
                route = await desk.route(ask([number, *LONG]))
                assert not candidates(route)
                assert desk.witness.last.split == "no-prefill-pods"
            desk.now += QUIET_S
            if state == "not ready":
                desk.pool.endpoints.set_ready(desk.members[1].id, False, desk.now)
            await desk.route(ask([99, *LONG]))
    assert [(line["log_level"], line["requests"]) for line in logs] == [
        ("warning", 1),
        ("warning", 30),
    ]


async def test_D07_a_pool_without_roles_says_nothing() -> None:
    """Protected by `has_roles`. Red without it: a line a minute in every ordinary pool."""
    with structlog.testing.capture_logs() as logs:
        async with open_desk(2) as desk:
            alarmed(desk)
            await desk.route(ask(LONG))
            assert desk.witness.last.split == "no-prefill-pods"
    assert logs == []


async def test_D07_prefill_pods_alone_are_no_pool() -> None:
    """Protected by `filters.eligible`. Red without its check of roles: the prefill pod answers, or
    the decision fails."""
    async with open_desk(roles=[P, Role.ENCODE, Role.ENCODE_PREFILL], split="always") as desk:
        for mode in sorted(set(desk.switch.modes) - {"shadow"}):  # there the gateway chooses
            desk.switch.switch(mode)
            outcome = await desk.decide(ask(LONG))
            assert isinstance(outcome, NoEndpoint)
            assert (outcome.status, outcome.reason) == (503, "rejected-no-endpoints")


async def test_D07_a_prefill_pod_on_another_port_is_named_by_its_own() -> None:
    """Protected by `director._headers`, which names addresses as the members have them. Red with
    the destination's port."""
    text = b"""
endpoints:
  - {name: d, address: 10.0.0.1, port: 8000, labels: {llm-d.ai/role: decode}}
  - {name: p, address: 10.0.0.2, port: 9000, labels: {llm-d.ai/role: prefill}}
"""
    async with open_desk(0) as desk:
        desk.pool.replace(parse_endpoints(text, "e.yaml", POOL), desk.now)
        assert candidates(await desk.route(ask(LONG))) == "10.0.0.2:9000"


async def test_D28_the_list_is_read_by_the_sidecar_as_it_was_meant() -> None:
    """Protected by `director._headers`: bracketed addresses, commas, nothing else. Red with
    `str(endpoint.id)` in place of the address."""
    async with open_desk(0, built=default_built(prefillers=4)) as desk:
        text = b"""
endpoints:
  - {name: d, address: 10.0.0.1, port: 8000, labels: {llm-d.ai/role: decode}}
  - {name: p, address: "fd00::2", port: 9000, labels: {llm-d.ai/role: prefill}}
  - {name: q, address: 10.0.0.3, port: 8000, labels: {llm-d.ai/role: encode-prefill}}
  - {name: r, address: 10.0.0.4, port: 8000, labels: {llm-d.ai/role: prefill}}
"""
        members: list[Member] = parse_endpoints(text, "e.yaml", POOL)
        desk.pool.replace(members, desk.now)
        route = await desk.route(ask(LONG))
        meant = [one.address for one in desk.witness.last.prefill]
    read = targets.parse([candidates(route)])
    assert read.malformed == 0
    assert [str(target) for target in read.found] == meant
    assert "[fd00::2]:9000" in meant
    assert len(meant) == 3
    assert replies.settable(protocol.PREFILLER, candidates(route))


async def test_D28_without_a_split_a_clients_own_list_is_taken_out() -> None:
    """Protected by `protocol.ROUTING_HEADERS`. Red when it lacks the header: the sidecar would post
    the prompt wherever a client says."""
    async with open_desk(roles=[D, P]) as desk:
        route = await desk.route(ask([1]), headers={protocol.PREFILLER: "evil:80"})
    assert not candidates(route)
    raw = replies.routing(
        replies.REQUEST_HEADERS,
        route.destination,
        route.set_headers,
        route.remove_headers,
        new_length=False,
    )
    mutation = pb.ProcessingResponse.FromString(raw).request_headers.response.header_mutation
    assert protocol.PREFILLER in mutation.remove_headers
    assert protocol.PREFILLER not in {option.header.key for option in mutation.set_headers}
