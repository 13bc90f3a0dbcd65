"""Whatever pool, prompt and rules: who may be chosen, and that each split has its reason."""

from itertools import pairwise
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from epp.errors import NoEndpoint
from epp.framework import (
    Candidates,
    Endpoint,
    Load,
    Match,
    Request,
    Role,
    Source,
)
from epp.request import filters
from epp.request.schedule import TIE, schedule
from epp.request.split import Part, Why, Wish, encode, prefill
from tests.fakes.endpoints import endpoint
from tests.fakes.plans import Booth, default_built

BUILT = {
    (split, threshold, count): default_built(split, threshold, prefillers=count)
    for split in ("prefix", "always", "never")
    for threshold in (1, 300, 1000)
    for count in (1, 2, 4)
}
WORDS = {"below-threshold", "cached", "tokens-estimated", "load-only"}
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
RULES = st.tuples(
    st.sampled_from(["prefix", "prefix", "always", "never"]),
    st.sampled_from([1, 300, 1000]),
    st.sampled_from([1, 2, 4]),
)


def pod(number: int, part: tuple[Role, bool, int, Source, float, int | None]) -> Endpoint:
    role, sidecar, tokens, source, trust, waiting = part
    return endpoint(
        number,
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
    rules: tuple[str, int, int],
    normal: bool,
    seed: int,
) -> None:
    pool = [pod(number, part) for number, part in enumerate(parts)]
    chance, booth, built = Random(seed), Booth(), BUILT[rules]
    decider, threshold, count = rules
    course = built.handler.plugin.course(request, tuple(built.profiles))
    try:
        eligible = filters.eligible(Candidates.of(pool), None)
    except NoEndpoint:
        assert not any(one.role.serves_decode for one in pool)
        return
    chosen = schedule(
        request, filters.decoders(eligible), built.profiles["decode"], chance, booth.ballot
    )
    destination = chosen.chosen[0]
    wish = Wish(
        request=request,
        destinations=chosen.chosen,
        eligible=eligible,
        built=built,
        course=course,
        chance=chance,
        ballot=booth.ballot,
        normal=normal,
    )
    assert encode(wish) == Part(why=Why.NEVER)
    part = prefill(wish)
    assert booth.failures == []
    assert destination.role.serves_decode
    assert part.why in (set(Why) - {Why.FAILED, Why.NO_MEDIA, Why.NO_ENCODE_PODS}) | WORDS
    assert (part.selection is not None) == (part.why == Why.SPLIT)
    if part.selection is None:
        return
    found = [one.id for one in part.selection.chosen]
    assert len(set(found)) == len(found) <= count
    assert destination.id not in found
    assert all(one.role.serves_prefill for one in part.selection.chosen)
    others = [one for one in pool if one.role.serves_prefill and one.id != destination.id]
    assert len(found) == min(count, len(others))
    assert [row.endpoint for row in part.selection.table][: len(found)] == found
    totals = [row.total for row in part.selection.table]
    # Ratings as close as that are equal, and come in any order.
    assert all(later <= row + TIE for row, later in pairwise(totals))
    assert normal
    assert not request.whole
    assert destination.has_sidecar
    if decider == "prefix":
        assert request.exact
        assert request.scored
        lacks = request.prompt_tokens - destination.match.tokens * destination.match.trust
        assert lacks >= threshold
