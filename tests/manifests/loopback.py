"""A rendered pool without a cluster: its processes on loopback, with the arguments of its pods.

What the kubelet does is done here: variables put into arguments, Secrets and ConfigMaps as files.
Pods share one address, each with a port of its own. Only addresses, ports and paths differ from a
cluster's; engines are simulated.
"""

import asyncio
import os
import random
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from epp.control.kube.objects import ACTIVE_PORTS, SIDECAR
from epp.sim.apiserver.server import ApiServer
from epp.sim.fleets.ports import free_ports
from epp.sim.gateway.envoy import EnvoySettings
from epp.sim.serving.server import EngineServer
from tests.fakes.cluster import NAMESPACE, Pods, api_server, kubeconfig
from tests.fakes.engines import running_pair
from tests.fakes.gateway import Gateway, gateway
from tests.fakes.picker_process import OWN_CODE, PickerProcess, cluster_process
from tests.fakes.redis_server import RedisServer, knows_read_keys, running
from tests.fakes.waiting import until
from tests.manifests.rendered import Object, container, flags, of_kind, pods
from tests.timing import scaled

HOST = "127.0.0.1"
NOTHING: Mapping[str, Path] = {}
Edit = Callable[[str], str]
"""Changes a bootstrap."""
GatewayOf = Callable[[int, list[str]], tuple[EnvoySettings, Edit]]
"""Makes the gateway of a picker's port and the pods' addresses."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Of one pod."""

    requests: int
    metrics: int
    events: int
    replay: int


@dataclass(slots=True)
class Pool:
    """Everything that runs."""

    pods: Pods
    picker: PickerProcess
    gateway: Gateway
    metrics: dict[str, str] = field(default_factory=dict[str, str])
    """Pages of the sidecars by Deployment."""

    async def metric(self, name: str, begins: str) -> float:
        """The sum of a sidecar's series whose lines begin so."""
        async with aiohttp.ClientSession() as session, session.get(self.metrics[name]) as page:
            lines = [line for line in (await page.text()).splitlines() if line.startswith(begins)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    async def until(self, number: Callable[[], Awaitable[float]], wanted: float) -> None:
        """Wait until a metric is at least this."""
        async with asyncio.timeout(scaled(10)):
            while True:
                if await number() >= wanted:
                    return
                await asyncio.sleep(0.05)


def standalone(picker: int, _: list[str]) -> tuple[EnvoySettings, Edit]:
    """The gateway of the overlay of this name, at other addresses."""
    settings = EnvoySettings(
        listen_port=0,
        admin_port=0,
        ext_proc_port=picker,
        endpoints=[],
        tls=True,
        shape="original-dst",
    )
    return settings, str


@asynccontextmanager
async def served(
    objects: tuple[Object, ...],
    directory: Path,
    envoy: GatewayOf = standalone,
    code: Mapping[str, Path] = NOTHING,
) -> AsyncIterator[Pool]:
    """The rendered pool of prefill and decode pods, one of each, once requests can be served.

    `code`: other checkouts, by the Deployment whose process runs from them."""
    free = free_ports(8, random.Random())
    numbers = {"prefill": Ports(*free[:4]), "decode": Ports(*free[4:])}
    async with AsyncExitStack() as stack:
        redis = stack.enter_context(running("--aclfile", str(_users(objects, directory))))
        server = await stack.enter_async_context(api_server())
        engines = {
            name: {"kv_events": _tcp(ports.events), "kv_replay": _tcp(ports.replay)}
            for name, ports in numbers.items()
        }
        pair = await stack.enter_async_context(
            running_pair(
                engines["prefill"],
                engines["decode"],
                kv_events_bind=False,  # as vLLM does with such an address
            )
        )
        known = Pods(server)
        pages: dict[str, str] = {}
        for name, engine in (("prefill", pair.prefill), ("decode", pair.decode)):
            uid = _add(known, objects, name, numbers[name])
            pages[name] = f"http://{HOST}:{numbers[name].metrics}/metrics"
            words = _sidecar(objects, name, uid, numbers[name], engine, redis)
            words = _with_keys(words, _keys(objects, name, directory))
            place = code.get(name, OWN_CODE)
            await stack.enter_async_context(_process(directory / f"{name}.log", place, *words))
        asked = _picker(objects, numbers, server, redis, directory)
        picker = await stack.enter_async_context(
            cluster_process(directory, *asked, code=code.get("epp", OWN_CODE))
        )
        addresses = [f"{HOST}:{ports.requests}" for ports in numbers.values()]
        settings, edit = envoy(picker.ports["grpc"], addresses)
        running_envoy = await stack.enter_async_context(gateway(directory, settings, edit=edit))
        here = Pool(known, picker, running_envoy, pages)
        await picker.until_metric("llm_d_epp_ready_endpoints", 2)
        yield here


def _tcp(port: int) -> str:
    return f"tcp://{HOST}:{port}"


def _config(objects: tuple[Object, ...], key: str) -> dict[str, str]:
    (found,) = [one["data"] for one in of_kind(objects, "ConfigMap") if key in one["data"]]
    return dict(found)


def _users(objects: tuple[Object, ...], directory: Path) -> Path:
    """What the first container of Redis does, with rights that the server knows."""
    rights = directory / "rights"
    rights.mkdir()
    for name, text in _config(objects, "users.sh").items():
        (rights / name).write_text(text if knows_read_keys() else text.replace("%R~", "~"))
    known = {"PATH": "/usr/bin:/bin", **_config(objects, "POOL_NAME")}
    words = ["sh", rights / "users.sh", rights, _keys(objects, "redis", directory), directory]
    subprocess.run(words, check=True, env=known)
    return directory / "users.acl"


def _keys(objects: tuple[Object, ...], name: str, directory: Path) -> Path:
    """The Secret as a Deployment mounts it. Each key is made of its name, so all pods agree."""
    place = directory / "keys" / name
    place.mkdir(parents=True)
    (volume,) = [one for one in pods(objects)[name]["spec"]["volumes"] if "secret" in one]
    for item in volume["secret"]["items"]:
        (place / item["path"]).write_text(f"{item['key']:x<64}\n")
    return place


def _add(known: Pods, objects: tuple[Object, ...], name: str, ports: Ports) -> str:
    """A ready pod of a Deployment; its uid."""
    template = pods(objects)[name]
    spec = {"nodeName": "n", **template["spec"]}
    labels = template["metadata"]["labels"]
    only = {ACTIVE_PORTS[0]: str(ports.requests)}
    return known.add(name, HOST, labels=labels, spec=spec, annotations=only)


def _put_in(words: list[str], values: dict[str, str]) -> list[str]:
    return [re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], word) for word in words]


def _with_keys(words: list[str], place: Path) -> list[str]:
    return [word.replace("=/keys/", f"={place}/") for word in words]


def _sidecar(
    objects: tuple[Object, ...],
    name: str,
    uid: str,
    ports: Ports,
    engine: EngineServer,
    redis: RedisServer,
) -> list[str]:
    sidecar = container(objects, name, SIDECAR)
    here = {
        "--port": str(ports.requests),
        "--metrics-port": str(ports.metrics),
        "--engine-url": f"http://{HOST}:{engine.port}",
        "--kv-events": _tcp(ports.events),
        "--kv-replay": _tcp(ports.replay),
    }
    said = flags(sidecar)
    assert here.keys() <= said.keys()
    said |= {**here, "--host": HOST}
    values = {one["name"]: one.get("value", "") for one in sidecar["env"]}
    values |= {"POD_UID": uid, **_config(objects, "POOL_NAME")}
    words = [f"{flag}={value}" if value else flag for flag, value in said.items()]
    words = [word.replace("@redis:6379", f"@{HOST}:{redis.port}") for word in words]
    return ["sidecar", *_put_in(words, values)]


def _picker(
    objects: tuple[Object, ...],
    numbers: dict[str, Ports],
    server: ApiServer,
    redis: RedisServer,
    directory: Path,
) -> list[str]:
    picker = container(objects, "epp", "epp")
    listed = ",".join(str(ports.requests) for ports in numbers.values())
    words = [word.replace("@redis:6379", f"@{HOST}:{redis.port}") for word in picker["args"]]
    words = [word.replace("target-ports=8000", f"target-ports={listed}") for word in words]
    words = _with_keys(words, _keys(objects, "epp", directory))
    words += ["--kubeconfig", str(kubeconfig(directory, server.url))]
    words += ["--pool-namespace", NAMESPACE, "--secure-serving", "--tokenizer", "engine"]
    return _put_in(words, _config(objects, "POOL_NAME"))


@asynccontextmanager
async def _process(log: Path, code: Path, *words: str) -> AsyncIterator[None]:
    """Of our command line, once it listens; killed at the end."""
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "epp.cli", *words),
            stdout=output,
            stderr=output,
            cwd=code,
            env={**os.environ, "PYTHONPATH": str(code)},
        )
    try:
        await until(lambda: _listens(process, log), within_s=30)
        yield
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _listens(process: Any, log: Path) -> bool:
    text = log.read_text()
    assert process.returncode is None, text
    return "sidecar listens" in text
