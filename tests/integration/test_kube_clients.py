"""Independent clients take the simulated API server for a real one: kubectl, and a controller that
is built on Kubernetes' own client library."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from epp.sim.apiserver.resources import PODS, Object
from epp.sim.apiserver.server import ApiServer
from tests.fakes.cluster import (
    NAMESPACE,
    OBJECTIVE,
    POOL,
    Pods,
    api_server,
    definition,
    kubeconfig,
    pool,
)
from tests.fakes.waiting import until
from tests.timing import scaled

pytestmark = pytest.mark.long

GATEWAY = "gateway.networking.k8s.io"
KINDS = [
    ("v1", "gatewayclasses", "GatewayClass", "Cluster"),
    ("v1", "gateways", "Gateway", "Namespaced"),
    ("v1", "httproutes", "HTTPRoute", "Namespaced"),
    ("v1", "grpcroutes", "GRPCRoute", "Namespaced"),
    ("v1", "tlsroutes", "TLSRoute", "Namespaced"),
    ("v1", "backendtlspolicies", "BackendTLSPolicy", "Namespaced"),
    ("v1beta1", "referencegrants", "ReferenceGrant", "Namespaced"),
]
OBJECT = """
apiVersion: llm-d.ai/v1alpha2
kind: InferenceObjective
metadata: {name: batch}
spec: {priority: %d, poolRef: {name: llama}}
"""


def _program(name: str) -> str:
    found = Path(sys.executable).parent / name
    if not found.exists():
        pytest.skip(f"{name} is not installed: make test-long does that")
    return str(found)


class Kubectl:
    def __init__(self, config: Path) -> None:
        self._command = [_program("kubectl"), "--kubeconfig", str(config), "-n", NAMESPACE]
        self._environment = {"HOME": str(config.parent), "PATH": os.environ["PATH"]}

    async def start(self, *words: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self._command,
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self._environment,
        )

    async def __call__(self, *words: str, given: str = "") -> str:
        """What it says; fails where it does."""
        process = await self.start(*words)
        async with asyncio.timeout(scaled(30)):
            output, _ = await process.communicate(given.encode())
        assert process.returncode == 0, output.decode()
        return output.decode()


@asynccontextmanager
async def _kubectl(directory: Path) -> AsyncIterator[tuple[ApiServer, Pods, Kubectl]]:
    async with api_server() as server:
        server.define(definition(*OBJECTIVE))
        pods = Pods(server)
        pods.put_pool(pool())
        pods.add("a", "10.0.0.1")
        yield server, pods, Kubectl(kubeconfig(directory, server.url))


async def test_kubectl_reads_writes_and_waits(tmp_path: Path) -> None:
    async with _kubectl(tmp_path) as (server, _, kubectl):
        assert "pod/a" in await kubectl("get", "po", "-l", "app=llama", "-o", "name")
        assert POOL in await kubectl("get", "inferencepools")
        await kubectl("label", "pod", "a", "x=y")
        await kubectl("annotate", "pod", "a", "llm-d.ai/active-ports=8000")
        assert pods_of(server)[0]["metadata"]["labels"]["x"] == "y"
        for priority, said in ((1, "created"), (1, "unchanged"), (2, "configured")):
            assert said in await kubectl("apply", "-f", "-", given=OBJECT % priority)
        said = await kubectl("apply", "--server-side", "-f", "-", given=OBJECT % 3)
        assert "serverside-applied" in said
        path = "jsonpath={.items[*].spec.priority}"
        assert await kubectl("get", "inferenceobjectives", "-o", path) == "3"
        assert "condition met" in await kubectl("wait", "--for=condition=Ready", "pod/a")
        await kubectl("delete", "pod", "a", "--grace-period=0", "--force")
        assert not pods_of(server)


async def test_kubectl_watches(tmp_path: Path) -> None:
    async with _kubectl(tmp_path) as (server, pods, kubectl):
        process = await kubectl.start("get", "pods", "-w", "-o", "name")
        try:
            await until(lambda: server.watches, within_s=20)
            pods.add("b", "10.0.0.2")
            pods.change("b", {"metadata": {"labels": {"x": "y"}}})
            assert process.stdout is not None
            async with asyncio.timeout(scaled(20)):
                lines = [await process.stdout.readline() for _ in range(3)]
            assert lines == [b"pod/a\n", b"pod/b\n", b"pod/b\n"]
        finally:
            process.kill()
            await process.wait()


async def test_a_gateway_controller_programs_its_gateway(tmp_path: Path) -> None:
    """It lists by watches that begin with a first state, and writes status back."""
    async with api_server() as server:
        for version, plural, kind, scope in KINDS:
            server.define(definition(GATEWAY, version, plural, kind, scope=scope))
        _put(server, "namespaces", "", {"metadata": {"name": NAMESPACE}})
        controller = {"controllerName": "traefik.io/gateway-controller"}
        _put(server, "gatewayclasses", "", {"metadata": {"name": "t"}, "spec": controller})
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        listener = {"name": "web", "protocol": "HTTP", "port": port}
        spec = {"gatewayClassName": "t", "listeners": [listener]}
        _put(server, "gateways", NAMESPACE, {"metadata": {"name": "g"}, "spec": spec})
        provider = "--providers.kubernetesgateway"
        log = (tmp_path / "log").open("wb")
        process = await asyncio.create_subprocess_exec(
            _program("traefik"),
            *(f"{provider}=true", f"{provider}.endpoint={server.url}", f"{provider}.token=x"),
            f"--entrypoints.web.address=127.0.0.1:{port}",
            *("--global.sendanonymoususage=false", "--global.checknewversion=false"),
            stdout=log,
            stderr=log,
            cwd=tmp_path,
        )
        try:
            await until(lambda: _conditions(server).get("Programmed") == "True", within_s=30)
            assert _conditions(server)["Accepted"] == "True"
        finally:
            process.kill()
            await process.wait()
            log.close()


def pods_of(server: ApiServer) -> list[Object]:
    return list(server.store.listed(PODS, NAMESPACE))


def _put(server: ApiServer, plural: str, namespace: str, made: Object) -> None:
    of = next(one for one in server.store.served if one.plural == plural)
    server.store.create(of, namespace, made)


def _conditions(server: ApiServer) -> dict[str, Any]:
    of = next(one for one in server.store.served if one.plural == "gateways")
    status = server.store.get(of, NAMESPACE, "g").get("status") or {}
    return {one["type"]: one["status"] for one in status.get("conditions", ())}
