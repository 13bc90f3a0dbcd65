"""What `make test-kube` does with a real API server, done with the simulated one."""

from pathlib import Path

from tests.fakes.backend import backend
from tests.fakes.cluster import NAMESPACE, POOL, Pods, api_server, kubeconfig, pool
from tests.fakes.picker_process import cluster_process
from tests.kube.scenario import cluster, goes_to, play


async def test_requests_follow_pods_and_pools(tmp_path: Path) -> None:
    async with api_server(tokens=["secret"]) as server:
        config = kubeconfig(tmp_path, server.url, token="secret")
        async with cluster(config, "epp-test") as here:
            await play(here, tmp_path)
            assert server.faults.asked["watch", "pods"] >= 1


async def test_workers_serve_a_pool_of_kubernetes(tmp_path: Path) -> None:
    async with api_server() as server, backend("b") as engine:
        host, _, port = engine.address.rpartition(":")
        pods = Pods(server)
        pods.put_pool(pool((int(port),)))
        pods.add("a", host)
        flags = ["--kubeconfig", str(kubeconfig(tmp_path, server.url)), "--pool-name", POOL]
        flags += ["--pool-namespace", NAMESPACE, "--workers", "2"]
        async with cluster_process(tmp_path, *flags) as picker:
            await picker.until_serving(True)
            await goes_to(picker, {engine.address})
            assert await picker.metric("epp_kube_pods") == 2  # one by each worker
