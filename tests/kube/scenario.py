"""From an InferencePool and pods to a routed request, through any API server."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from epp.control.kube.kubeconfig import read_kubeconfig
from tests.fakes.backend import backend
from tests.fakes.cluster import OBJECTIVE, POOL, V1, definition, pod, pool
from tests.fakes.extproc_client import call, channel, destination
from tests.fakes.picker_process import PickerProcess, cluster_process
from tests.timing import scaled

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
MERGE = "application/merge-patch+json"
ALLOWED_S = 20.0
"""For everything that takes a moment in a real cluster."""


class Cluster:
    """Writes to the API server that a kubeconfig leads to, in a namespace of its own."""

    def __init__(self, config: Path, namespace: str, session: aiohttp.ClientSession) -> None:
        self.config = config
        self.namespace = namespace
        self._access = read_kubeconfig(config)
        self._session = session

    async def ask(
        self, method: str, path: str, body: Any = None, kind: str = "application/json"
    ) -> tuple[int, Any]:
        headers = {**await self._access.identity.headers(renewed=False), "Content-Type": kind}
        async with self._session.request(
            method,
            f"{self._access.url}{path}",
            data=None if body is None else json.dumps(body),
            headers=headers,
            ssl=self._access.tls or True,
        ) as response:
            text = await response.text()
            return response.status, json.loads(text) if text.startswith("{") else text

    async def must(self, method: str, path: str, body: Any = None, **more: str) -> Any:
        """A new namespace takes a moment until pods may come, and a new kind until it is served."""
        async with asyncio.timeout(scaled(ALLOWED_S)):
            while True:
                status, found = await self.ask(method, path, body, **more)
                if status < 300 or (method == "POST" and status == 409):
                    return found
                assert status in {403, 404, 409, 429, 500, 503}, (status, found)
                await asyncio.sleep(0.2)

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    @property
    def pools(self) -> str:
        return f"/apis/{V1[0]}/v1/namespaces/{self.namespace}/inferencepools"

    async def put_pod(self, name: str, ip: str, **changes: Any) -> None:
        """A pod of a node that nobody is, so that nobody but us says how it is."""
        made = pod(name, ip, **changes)
        status = made.pop("status")
        made["spec"] |= {"nodeName": "epp-test", "terminationGracePeriodSeconds": 30}
        made["spec"] |= {"automountServiceAccountToken": False}
        await self.must("POST", self.pods, made)
        await self.must("PATCH", f"{self.pods}/{name}/status", {"status": status}, kind=MERGE)


@asynccontextmanager
async def cluster(config: Path, namespace: str) -> AsyncIterator[Cluster]:
    """With the kinds installed, where they are missing, and the namespace until the end."""
    async with aiohttp.ClientSession() as session:
        here = Cluster(config, namespace, session)
        for of in (V1, OBJECTIVE):
            made = definition(*of)
            status, _ = await here.ask("GET", f"{DEFINITIONS}/{made['metadata']['name']}")
            if status == 404:
                await here.must("POST", DEFINITIONS, made)
        await here.must("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        try:
            yield here
        finally:
            await here.ask("DELETE", f"/api/v1/namespaces/{namespace}")


async def play(here: Cluster, directory: Path) -> None:
    """Create, change and delete; after each step requests go where they should."""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(backend("first"))
        second = await stack.enter_async_context(backend("second"))
        (ip, port), other = _split(first.address), _split(second.address)[1]
        flags = ["--kubeconfig", str(here.config), "--pool-name", POOL]
        flags += ["--pool-namespace", here.namespace]
        picker = await stack.enter_async_context(cluster_process(directory, *flags))
        assert not await picker.serving()
        await here.must("POST", here.pools, pool((port,)))
        await here.put_pod("one", ip)
        await picker.until_serving(True)
        await goes_to(picker, {first.address})
        both = {"spec": {"targetPorts": [{"number": port}, {"number": other}]}}
        await here.must("PATCH", f"{here.pools}/{POOL}", both, kind=MERGE)
        await goes_to(picker, {first.address, second.address})
        only = {"metadata": {"annotations": {"llm-d.ai/active-ports": str(other)}}}
        await here.must("PATCH", f"{here.pods}/one", only, kind=MERGE)
        await goes_to(picker, {second.address})
        await here.must("DELETE", f"{here.pods}/one")  # marked only: nobody runs its node
        await goes_to(picker, {None})
        await here.put_pod("two", ip)
        await goes_to(picker, {first.address, second.address})
        unready = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
        await here.must("PATCH", f"{here.pods}/two/status", unready, kind=MERGE)
        await goes_to(picker, {None})
        await here.must("DELETE", f"{here.pools}/{POOL}")
        await picker.until_serving(False)


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


async def goes_to(picker: PickerProcess, wanted: set[str | None]) -> None:
    """Soon 20 requests in a row are spread over just these; None: refused with 503."""
    seen: set[str | None] = set()
    async with channel(picker.ports["grpc"]) as to:
        async with asyncio.timeout(scaled(ALLOWED_S)):
            while seen != wanted:
                seen = {await destination(call(to)) for _ in range(20)}
