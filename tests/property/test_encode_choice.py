"""Whatever pool and request: who may encode media, and that nobody else is named."""

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from epp.framework import Candidates, Endpoint, Load, Request, Role
from epp.request.split import Why, Wish, encode
from tests.fakes.endpoints import endpoint
from tests.fakes.plans import Booth
from tests.unit.test_encode_stage import BUILT

MOSTLY = st.sampled_from([True, True, True, False])
PODS = st.lists(
    st.tuples(st.sampled_from(list(Role)), MOSTLY, st.integers(0, 20) | st.none()),
    min_size=1,
    max_size=8,
)
MEDIA = st.lists(st.integers(0, 2**64), max_size=4, unique=True)


def pod(number: int, part: tuple[Role, bool, int | None]) -> Endpoint:
    role, sidecar, waiting = part
    return endpoint(number, role=role, has_sidecar=sidecar, load=Load(waiting=waiting))


@settings(max_examples=300, deadline=None)
@given(parts=PODS, media=MEDIA, normal=MOSTLY, held=st.booleans(), seed=st.integers(0, 99))
def test_roles_counts_and_reasons_hold_for_every_stage(
    parts: list[tuple[Role, bool, int | None]],
    media: list[int],
    normal: bool,
    held: bool,
    seed: int,
) -> None:
    pool = [pod(number, part) for number, part in enumerate(parts)]
    request = Request(
        id="r",
        api="chat",
        path="/v1/chat/completions",
        media=tuple((digest, 100) for digest in media),
        media_tokens=256 * len(media),
    )
    if held and media:
        request = replace(request, media_held={pool[-1].id: 100})
    booth = Booth()
    part = encode(
        Wish(
            request=request,
            destinations=(pool[0],),
            eligible=Candidates.of(pool),
            built=BUILT,
            course=BUILT.handler.plugin.course(request, tuple(BUILT.profiles)),
            chance=Random(seed),
            ballot=booth.ballot,
            normal=normal,
        )
    )
    able = [one for one in pool[1:] if one.role.serves_encode]
    assert booth.failures == []
    assert part.why == (
        Why.MODE
        if not normal
        else Why.NO_MEDIA
        if not media
        else Why.NO_SIDECAR
        if not pool[0].has_sidecar
        else Why.SPLIT
        if able
        else Why.NO_ENCODE_PODS
    )
    chosen = [] if part.selection is None else [one.id for one in part.selection.chosen]
    assert len(chosen) == len(set(chosen)) == (min(2, len(able)) if part.why == Why.SPLIT else 0)
    assert set(chosen) <= {one.id for one in able}
