"""`make test-kube`: the picker against the API server that KUBECONFIG names."""

import os
import uuid
from pathlib import Path

import pytest

from tests.kube.scenario import cluster, play

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300)]


async def test_requests_follow_pods_and_pools_of_a_real_cluster(tmp_path: Path) -> None:
    named = os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
    if not named:
        pytest.skip("KUBECONFIG names no cluster to ask")
    async with cluster(Path(named), f"epp-test-{uuid.uuid4().hex[:8]}") as here:
        await play(here, tmp_path)
        assert (await here.ask("GET", here.pools))[0] == 200
