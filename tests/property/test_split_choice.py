"""Whatever pool, prompt and rules: who may be chosen, and that each split has its reason."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from epp.errors import NoEndpoint
from epp.framework import (
    Endpoint,
    EndpointId,
    Incarnation,
    Load,
    Match,
    PoolId,
    Request,
    Role,
    Source,
)
from epp.request import filters
from epp.request.profiles import default_profile, prefill_profile
from epp.request.schedule import schedule
from epp.request.split import Decider, SplitRules, Why, with_prefill

POOL = PoolId("pool")
DECODE, PREFILL = default_profile(), prefill_profile()
MOSTLY = st.sampled_from([True, True, True, False])
PARTS = st.tuples(
    st.sampled_from(list(Role)),
    MOSTLY,
    st.integers(0, 3000),
    st.sampled_from([Source.PRECISE, Source.PREDICTED, Source.NONE]),
    st.floats(0, 1),
    st.integers(0, 20) | st.none(),
)
REQUESTS = st.builds(
    Request,
    id=st.just("r"),
    api=st.just("completions"),
    path=st.just("/v1/completions"),
    prompt_tokens=st.integers(0, 3000),
    exact=MOSTLY,
    scored=MOSTLY,
    whole=st.sampled_from(["", "", "", "n"]),
    keys=st.integers(0, 40).map(lambda count: tuple(range(count))),
)
RULES = st.builds(
    SplitRules,
    decider=st.sampled_from([*Decider, Decider.PREFIX]),
    threshold_tokens=st.integers(1, 1000),
    candidates=st.integers(1, 4),
)


def pod(number: int, part: tuple[Role, bool, int, Source, float, int | None]) -> Endpoint:
    role, sidecar, tokens, source, trust, waiting = part
    ident = EndpointId(POOL, f"pod-{number}", 8000)
    return Endpoint(
        id=ident,
        address=f"10.0.0.{number}:8000",
        incarnation=Incarnation(ident, 1),
        role=role,
        has_sidecar=sidecar,
        load=Load(waiting=waiting),
        match=Match(tokens, source, trust),
    )


@settings(max_examples=400, deadline=None)
@given(
    parts=st.lists(PARTS, max_size=8),
    request=REQUESTS,
    rules=RULES,
    normal=MOSTLY,
    seed=st.integers(0, 99),
)
def test_roles_counts_and_reasons_hold_for_every_decision(
    parts: list[tuple[Role, bool, int, Source, float, int | None]],
    request: Request,
    rules: SplitRules,
    normal: bool,
    seed: int,
) -> None:
    pool = [pod(number, part) for number, part in enumerate(parts)]
    chance = Random(seed)
    try:
        eligible = filters.eligible(pool, None)
    except NoEndpoint:
        assert not any(one.role.serves_decode for one in pool)
        return
    chosen = schedule(request, filters.decoders(eligible), DECODE, chance)
    decision = with_prefill(
        chosen, request, eligible, profile=PREFILL, rules=rules, chance=chance, normal=normal
    )
    destination = decision.chosen[0]
    assert decision.chosen == chosen.chosen
    assert destination.role.serves_decode
    assert decision.split in set(Why) - {Why.FAILED}
    assert bool(decision.prefill) == (decision.split == Why.SPLIT)
    prefill = [one.id for one in decision.prefill]
    assert len(set(prefill)) == len(prefill) <= rules.candidates
    assert destination.id not in prefill
    assert all(one.role.serves_prefill for one in decision.prefill)
    if not decision.prefill:
        return
    others = [one for one in pool if one.role.serves_prefill and one.id != destination.id]
    assert len(prefill) == min(rules.candidates, len(others))
    assert [row.endpoint for row in decision.prefill_table][: len(prefill)] == prefill
    totals = [row.total for row in decision.prefill_table]
    assert totals == sorted(totals, reverse=True)
    assert normal
    assert not request.whole
    assert destination.has_sidecar
    if rules.decider is Decider.PREFIX:
        assert request.exact
        assert request.scored
        lacks = request.prompt_tokens - destination.match.tokens * destination.match.trust
        assert lacks >= rules.threshold_tokens
