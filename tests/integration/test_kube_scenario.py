"""What `make test-kube` does with a real API server, done with the simulated one."""

from pathlib import Path

from tests.fakes.cluster import api_server, kubeconfig
from tests.kube.scenario import cluster, play


async def test_requests_follow_pods_and_pools(tmp_path: Path) -> None:
    async with api_server(tokens=["secret"]) as server:
        config = kubeconfig(tmp_path, server.url, token="secret")
        async with cluster(config, "epp-test") as here:
            await play(here, tmp_path)
            assert server.faults.asked["watch", "pods"] >= 1
