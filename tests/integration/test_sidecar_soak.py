"""Whatever goes wrong, nothing is kept for ever, and no client gets another one's tokens."""

from pathlib import Path

import pytest

from tests.fakes.soak import Soak, soaked

HARMLESS = {"whole", "left", "cut", "lost", "error-event"}
REFUSED = {f"status-{status}" for status in (429, 500, 502, 503, 504)}
BASE_MB = 60
"""What a sidecar may hold besides what it knows of its engine's blocks."""
BYTES_A_BLOCK = 48
GROWTH_MB = 8
"""Between half of the requests and all of them."""


@pytest.mark.parametrize(
    ("requests", "seed"),
    [
        (300, 1),
        pytest.param(20_000, 2, marks=[pytest.mark.long, pytest.mark.timeout(1800)]),
    ],
)
async def test_nothing_leaks_and_no_token_is_wrong(
    requests: int, seed: int, tmp_path: Path
) -> None:
    async with soaked(tmp_path, seed) as soak:
        await soak.run(50, troubled=False)
        await soak.settle()
        tasks = await soak.tasks()
        await soak.run(requests // 2)
        half_mb = [pod.rss_mb for pod in soak.pods]
        await soak.run(requests - requests // 2)
        await soak.settle()
        await soak.all_told()
        assert await soak.tasks() == tasks
        _is_right(soak, requests + 50)
        for pod, before_mb in zip(soak.pods, half_mb, strict=True):
            page = await pod.page(soak.http)
            assert pod.own_mb <= BASE_MB + page["kv_blocks"] * BYTES_A_BLOCK / 1e6
            assert pod.rss_mb - before_mb <= GROWTH_MB, "memory grows"


def _is_right(soak: Soak, sent: int) -> None:
    assert soak.wrong == []
    assert sum(soak.outcomes.values()) == soak.sent == sent
    assert soak.outcomes.keys() <= HARMLESS | REFUSED, soak.outcomes
    assert soak.outcomes["whole"] > sent / 2, soak.outcomes
    assert set(soak.done().values()) == {1}, "a reservation ends once"
    for pod in soak.pods:
        counts = pod.engine.driver.engine.pins.counters
        assert (counts.late, counts.reused) == (0, 0), "parameters were used twice or too late"
