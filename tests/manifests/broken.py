"""A deployment as it is rendered, to be broken, and ways to break it."""

import copy
import json
from datetime import UTC, datetime
from typing import Any

from epp.doctor.examine import examined
from epp.doctor.findings import Finding
from epp.doctor.workloads import Deployed
from epp.manifests.overlay import Gateway
from tests.manifests.rendered import Object, containers, rendered

NOW = datetime(2026, 6, 1, tzinfo=UTC)


class World:
    """A copy of what is rendered, to be broken."""

    def __init__(self, gateway: Gateway, *, apart: bool = True) -> None:
        self.objects: list[Object] = copy.deepcopy(list(rendered(gateway, apart=apart)))

    def get(self, kind: str, name: str = "") -> Object:
        (found,) = [
            one
            for one in self.objects
            if one["kind"] == kind and name in {"", one["metadata"]["name"]}
        ]
        return found

    def add(self, api: str, kind: str, name: str, spec: Object, **more: Any) -> None:
        metadata = {"name": name, "namespace": "team-a", **more}
        self.objects.append({"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec})

    def remove(self, kind: str, name: str) -> None:
        self.objects.remove(self.get(kind, name))

    def template(self, deployment: str) -> Object:
        return self.get("Deployment", deployment)["spec"]["template"]

    def container(self, deployment: str, name: str) -> Object:
        (found,) = [one for one in containers(self.template(deployment)) if one["name"] == name]
        return found

    def swap(self, deployment: str, name: str, flag: str, value: str | None) -> None:
        """Another value of a flag; None leaves it out."""
        args = self.container(deployment, name)["args"]
        args[:] = [word for word in args if word.partition("=")[0] != flag]
        if value is not None:
            args.append(f"{flag}={value}" if value else flag)

    def found(self) -> list[Finding]:
        return examined(Deployed.of(self.objects), NOW)


def labelled(world: World, deployment: str, key: str, value: str) -> None:
    world.template(deployment)["metadata"]["labels"][key] = value


def transferring(world: World, deployment: str, **changes: Any) -> None:
    flag = "--kv-transfer-config"
    args = world.container(deployment, "vllm")["args"]
    (said,) = [word for word in args if word.startswith(flag)]
    config = {**json.loads(said.partition("=")[2]), **changes}
    world.swap(deployment, "vllm", flag, json.dumps(config))


def telling(world: World, deployment: str, **changes: Any) -> None:
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": "tcp://127.0.0.1:5557",
        "replay_endpoint": "tcp://127.0.0.1:5558",
        **changes,
    }
    world.swap(deployment, "vllm", "--kv-events-config", json.dumps(config))


def unsaid(world: World, deployment: str, name: str) -> None:
    one = world.container(deployment, "vllm")
    one["env"] = [each for each in one["env"] if each["name"] != name]


def scaled(world: World, kind: str, name: str, **more: Any) -> None:
    target = {"kind": "Deployment", "name": "decode"}
    api = "keda.sh/v1alpha1" if kind == "ScaledObject" else "autoscaling/v2"
    world.add(api, kind, name, {"scaleTargetRef": target}, **more)


def two_scalers(world: World) -> None:
    scaled(world, "HorizontalPodAutoscaler", "one")
    scaled(world, "ScaledObject", "two")


def drop_stripping(world: World) -> None:
    world.remove("EnvoyFilter", "strip-routing-headers")


def strip_less(world: World) -> None:
    patches = world.get("EnvoyFilter", "strip-routing-headers")["spec"]["configPatches"]
    early = patches[0]["patch"]["value"]["typed_config"]["early_header_mutation_extensions"]
    early[0]["typed_config"]["mutations"].pop()


def strip_late(world: World) -> None:
    rule = world.get("HTTPRoute")["spec"]["rules"][0]
    remove = {"remove": ["X-Gateway-Destination-Endpoint"]}
    rule["filters"] = [{"type": "RequestHeaderModifier", "requestHeaderModifier": remove}]


def without_sidecar(world: World) -> None:
    for name in ("prefill", "decode"):
        world.template(name)["spec"]["initContainers"] = []


def same_selector(world: World) -> None:
    other = copy.deepcopy(world.get("Deployment", "decode"))
    other["metadata"]["name"] = "another"
    world.objects.append(other)


def more_rights(world: World) -> None:
    rule = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}
    world.get("Role", "epp")["rules"].append(rule)
