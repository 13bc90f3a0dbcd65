"""Accounts of media: bounded whatever happens, and equal to a plain model of them."""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import (
    Decision,
    Endpoint,
    EndpointId,
    Incarnation,
    Request,
    Rung,
)
from epp.plugins.producers.mm_embeddings_cache import MmEmbeddingsCache
from tests.fakes.endpoints import endpoint

MB = 2**20
Media = tuple[tuple[int, int], ...]


SIZES = {digest: (1 + digest % 3) * MB // 2 for digest in range(12)}
media = st.lists(st.sampled_from(sorted(SIZES.items())), max_size=6, unique=True).map(tuple)
endpoints = st.builds(endpoint, st.integers(0, 4), start_ms=st.sampled_from([1, 1, 2]))
steps = st.lists(st.tuples(endpoints, media) | st.integers(0, 4), max_size=40)


def _send(cache: MmEmbeddingsCache, endpoint: Endpoint, media: Media) -> None:
    request = Request(id="r", api="c", path="/", media=media)
    cache.chosen(
        request,
        Decision(request_id="r", chosen=(endpoint,), rung=Rung.PREDICTED, reasons=()),
    )


class Model:
    """Each endpoint's media as a list, the newest last; nothing is indexed."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.kept: dict[EndpointId, tuple[Incarnation, list[int]]] = {}

    def send(self, endpoint: Endpoint, media: Media) -> None:
        if not media:
            return
        incarnation, kept = self.kept.get(endpoint.id, (endpoint.incarnation, []))
        if incarnation != endpoint.incarnation:
            kept = []
        for digest, _ in media:
            kept = [*(one for one in kept if one != digest), digest]
            while len(kept) > 1 and sum(SIZES[one] for one in kept) > self.most_bytes:
                kept = kept[1:]
        self.kept[endpoint.id] = (endpoint.incarnation, kept)

    def held(self) -> dict[EndpointId, int]:
        return {ident: sum(SIZES[one] for one in kept) for ident, (_, kept) in self.kept.items()}


@given(steps=steps, size_mb=st.integers(1, 6))
def test_accounts_are_those_of_a_plain_model(
    steps: Sequence[tuple[Endpoint, Media] | int], size_mb: int
) -> None:
    cache, model = MmEmbeddingsCache(cache_size_in_mb_per_server=size_mb), Model(size_mb * MB)
    for step in steps:
        if isinstance(step, int):
            gone = endpoint(step).id
            cache.removed([gone])
            model.kept.pop(gone, None)
        else:
            _send(cache, *step)
            model.send(*step)
    assert cache.held(tuple(SIZES.items())) == model.held()
    assert len(cache) == sum(len(kept) for _, kept in model.kept.values())
    cache.removed([endpoint(name).id for name in range(5)])
    assert len(cache) == 0
    assert cache.held(tuple(SIZES.items())) == {}


@given(steps=steps, most=st.integers(1, 8))
def test_media_over_all_endpoints_are_bounded(
    steps: Sequence[tuple[Endpoint, Media] | int], most: int
) -> None:
    cache = MmEmbeddingsCache(cache_size_in_mb_per_server=100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MmEmbeddingsCache.chosen.__globals__, "MAX_MEDIA", most)
        for step in steps:
            if isinstance(step, int):
                cache.removed([endpoint(step).id])
            else:
                _send(cache, *step)
            assert len(cache) <= most
            assert sum(cache.held([(digest, 1) for digest in SIZES]).values()) == len(cache)


@given(media=media, order=st.randoms(use_true_random=False))
def test_the_order_of_media_and_of_endpoints_changes_nothing_that_is_held(
    media: Media, order: Random
) -> None:
    straight, mixed = MmEmbeddingsCache(), MmEmbeddingsCache()
    others, names = list(media), [0, 1, 2, 3]
    order.shuffle(others)
    order.shuffle(names)
    for name in range(4):
        _send(straight, endpoint(name), media[: name + 1])
    for name in names:
        _send(mixed, endpoint(name), media[: name + 1][::-1])
    assert straight.held(media) == mixed.held(others)
