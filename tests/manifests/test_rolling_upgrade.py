"""A pool in the middle of an upgrade: processes of an earlier release beside those of today."""

from functools import partial
from pathlib import Path

import aiohttp
import pytest

from tests.contract.wire import RECORDINGS
from tests.fakes.releases import code_of
from tests.manifests.loopback import served
from tests.manifests.rendered import rendered
from tests.manifests.requests import asked, split

pytestmark = pytest.mark.long

RELEASES = sorted(file.stem for file in RECORDINGS.glob("*.json"))
PROOF = {"epp": "epp/request", "prefill": "sidecar", "decode": "sidecar"}
"""What a process of an earlier release has read of its own code."""


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    "older", [("prefill", "decode"), ("epp",), ("decode",), ("prefill",)], ids=" and ".join
)
async def test_pickers_and_sidecars_of_two_releases_serve_a_pool_together(
    release: str, older: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The picker's seal is believed, legs are taken, and what engines hold is known by its blocks'
    names, whichever side is the newer one."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "")
    code = {name: code_of(release, tmp_path / f"older-{name}") for name in older}
    async with (
        served(rendered("standalone"), tmp_path, code=code) as pool,
        aiohttp.ClientSession() as session,
    ):
        prompt, first = await split(pool, session)
        await pool.until(partial(pool.picker.metric, "epp_index_blocks"), 40)
        again = await asked(session, pool.gateway.url, prompt)
        assert again["choices"][0]["text"] == first["choices"][0]["text"]
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 3000
        await pool.until(partial(pool.picker.metric, 'epp_decisions_total{rung="precise"'), 1)
        assert not await pool.picker.metric('epp_state_events_total{event="record-')
        for name in ("prefill", "decode"):
            assert not await pool.metric(name, "epp_sidecar_prefill_targets_refused_total")
            assert not await pool.metric(name, "epp_sidecar_legs_refused_total")
    for name, place in code.items():
        assert (place / PROOF[name] / "__pycache__").is_dir(), "today's code ran"
