"""What manifests say to our commands, to vLLM and to Envoy is what these know, and it fits."""

import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import typer
import yaml

from epp import cli, protocol
from epp.cli import app
from epp.commands.serve import serve_flags
from epp.config.serve import ServeSettings, serve_settings
from epp.control.kube.objects import SIDECAR
from epp.framework import Role
from epp.manifests.overlay import GATEWAYS, Gateway
from epp.sim.fleets.vllm import Server, Vllm
from epp.sim.gateway.envoy import command
from sidecar.settings import SidecarSettings
from tests.manifests.rendered import (
    APART,
    POOL,
    ROOT,
    Object,
    container,
    containers,
    flags,
    named,
    of_kind,
    pods,
    rendered,
)

ENGINES = (*APART, "vllm")


def _engine(name: str, which: str) -> Object:
    return container(rendered("standalone", apart=name in APART), name, which)


def _environment(of: Object, objects: tuple[Object, ...]) -> dict[str, str]:
    """As the pod has it; what a field of the pod gives stands as the path of the field."""
    configs = {one["metadata"]["name"]: one["data"] for one in of_kind(objects, "ConfigMap")}
    found: dict[str, str] = {}
    for source in of.get("envFrom", ()):
        found |= configs[source["configMapRef"]["name"]]
    for one in of.get("env", ()):
        field = one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
        found[one["name"]] = one.get("value", field)
    return found


def _arguments(of: Object, objects: tuple[Object, ...]) -> list[str]:
    """With `$(NAME)` put in, as the kubelet does."""
    known = _environment(of, objects)
    return [re.sub(r"\$\((\w+)\)", lambda found: known[found[1]], word) for word in of["args"]]


def _parsed(name: str, arguments: list[str]) -> dict[str, Any]:
    """As the command line reads them; raises where it refuses them."""
    group: Any = typer.main.get_command(app)
    values: dict[str, Any] = group.commands[name].make_context(name, arguments).params
    return values


@pytest.mark.parametrize("gateway", GATEWAYS)
def test_a_picker_takes_its_arguments(gateway: Gateway) -> None:
    objects = rendered(gateway)
    picker = container(objects, "epp", "epp")
    assert picker["command"] == ["epp", "serve"]
    assert {flag[2:] for flag in flags(picker)} <= serve_flags().keys()
    given = _parsed("serve", cli._add_serve(["serve", *_arguments(picker, objects)])[1:])
    settings = serve_settings(given)
    known = _environment(picker, objects)
    assert settings.pool_name == POOL
    assert known["NAMESPACE"] == "metadata.namespace"
    assert known["POD_NAME"] == "metadata.name"
    assert settings.store == "redis"
    assert settings.handoff_key_file
    assert settings.salt_key_file


@pytest.mark.parametrize("name", ENGINES)
def test_a_sidecar_takes_its_arguments(name: str) -> None:
    objects = rendered("standalone", apart=name in APART)
    sidecar = container(objects, name, SIDECAR)
    assert sidecar["command"] == ["epp", "sidecar"]
    assert sidecar["restartPolicy"] == "Always"
    given = _parsed("sidecar", _arguments(sidecar, objects))
    assert given["pool_name"] == POOL
    assert given["name"] == "metadata.uid"  # as the picker names a pod
    assert given["kv_lease"] == SidecarSettings.model_fields["kv_lease_s"].default
    for key in ("handoff_key_file", "leg_key_file", "salt_key_file"):
        assert given[key].parent == Path("/keys")


def test_both_sides_say_the_same() -> None:
    picker = serve_settings({"redis_url": "redis://x", "store": "redis"})
    sidecar = SidecarSettings(pool="x", name="x")
    assert picker.redis_streams == sidecar.state_streams
    assert picker.cache_namespace == sidecar.cache_namespace
    said = flags(container(rendered("standalone"), "epp", "epp"))
    log = urlsplit(said["--redis-url"])
    for name in ENGINES:
        url = flags(_engine(name, SIDECAR))["--state-url"].replace("$(REDIS_USER)", name)
        state = urlsplit(url)
        assert (state.hostname, state.port, state.path) == (log.hostname, log.port, log.path)
        assert {one["name"]: one.get("value") for one in _engine(name, SIDECAR)["env"]}[
            "REDIS_USER"
        ] == name
    service = named(rendered("standalone"), "Service", str(log.hostname))
    assert [port["port"] for port in service["spec"]["ports"]] == [log.port]


@pytest.mark.parametrize("name", ENGINES)
def test_a_sidecar_finds_its_engine_on_loopback(name: str) -> None:
    sidecar, engine = flags(_engine(name, SIDECAR)), flags(_engine(name, "vllm"))
    assert sidecar["--engine-url"] == f"http://{engine['--host']}:{engine['--port']}"
    assert engine["--host"] == "127.0.0.1"
    events = json.loads(engine["--kv-events-config"])
    assert events["endpoint"] == sidecar["--kv-events"]
    assert events["replay_endpoint"] == sidecar["--kv-replay"]
    # vLLM connects to an address without a wildcard, so the sidecar binds it.
    assert "*" not in events["endpoint"]
    assert "--kv-events-bind" in sidecar
    assert urlsplit(events["endpoint"]).hostname == "127.0.0.1"


@pytest.mark.parametrize("name", ENGINES)
def test_vllm_gets_the_flags_that_real_engines_are_tested_with(name: str) -> None:
    role = {"prefill": Role.PREFILL, "decode": Role.DECODE}.get(name, Role.UNLABELLED)
    tested = Server(
        vllm=Vllm(Path("venv")),
        port=1,
        role=role,
        kv_events="tcp://127.0.0.1:1",
        kv_replay="tcp://127.0.0.1:2",
        side_channel_port=3,
        lease_s=30,
    )
    words = tested.command()
    ours = flags(_engine(name, "vllm"))
    assert ours.keys() <= set(words)
    assert ("--kv-transfer-config" in ours) == (name in APART)
    for flag in ("--kv-events-config", "--kv-transfer-config"):
        if flag in ours:
            known = json.loads(words[words.index(flag) + 1])
            said = json.loads(ours[flag])
            assert said.keys() <= known.keys()
            assert said.get("kv_role") == known.get("kv_role")


@pytest.mark.parametrize("name", APART)
def test_engines_hand_over_as_they_should(name: str) -> None:
    engine = _engine(name, "vllm")
    transfer = json.loads(flags(engine)["--kv-transfer-config"])
    assert "engine_id" not in transfer
    assert transfer["kv_load_failure_policy"] == "fail"
    lease = transfer["kv_connector_extra_config"]["kv_lease_duration"]
    assert lease == float(flags(_engine(name, SIDECAR))["--kv-lease"])
    known = _environment(engine, rendered("standalone"))
    assert known["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "status.podIP"
    assert int(known["VLLM_NIXL_SIDE_CHANNEL_PORT"]) == engine["ports"][0]["containerPort"]


@pytest.mark.parametrize("name", ENGINES)
def test_a_pod_has_time_to_end(name: str) -> None:
    template = pods(rendered("standalone", apart=name in APART))[name]["spec"]
    words = _engine(name, "vllm")["lifecycle"]["preStop"]["exec"]["command"]
    limit = float(words[words.index("--limit") + 1])
    last = SidecarSettings.model_fields["grace_s"].default
    assert template["terminationGracePeriodSeconds"] >= limit + last + 20


def test_a_picker_has_time_to_end() -> None:
    template = pods(rendered("standalone"))["epp"]["spec"]
    said = flags(container(rendered("standalone"), "epp", "epp"))["--drain-timeout"]
    assert said == "30s"
    assert ServeSettings.model_fields["drain_timeout_s"].default == 30
    assert template["terminationGracePeriodSeconds"] >= 30 + 5 + 5


def test_envoy_gets_the_flags_that_it_is_tested_with() -> None:
    words = container(rendered("standalone"), "gateway", "envoy")["args"]
    tested = command(Path("envoy"), Path("envoy.json"))
    assert {word for word in words if word.startswith("--")} <= set(tested)


def test_probes_ask_for_what_is_answered() -> None:
    for objects in (rendered("standalone"), rendered("standalone", apart=False)):
        for deployment, template in pods(objects).items():
            for one in containers(template):
                ports = {port.get("name"): port["containerPort"] for port in one.get("ports", ())}
                for word in ("startupProbe", "livenessProbe", "readinessProbe"):
                    probe = one.get(word, {})
                    if "grpc" in probe:
                        assert probe["grpc"]["service"] in protocol.HEALTH_SERVICES
                        assert probe["grpc"]["port"] in ports.values()
                    if "httpGet" in probe:
                        assert probe["httpGet"]["path"] in {"/healthz", "/health"}
                        assert probe["httpGet"]["port"] in ports, deployment


def test_images_are_of_this_release() -> None:
    for name in ("base", "engines/vllm"):
        said = yaml.safe_load((ROOT / name / "kustomization.yaml").read_text())
        assert [one["newTag"] for one in said["images"]] == [version("gie-epp")]


def test_the_engines_probe_fails_where_nobody_answers() -> None:
    program, *words = _engine("vllm", "vllm")["livenessProbe"]["exec"]["command"]
    assert program == "python3"
    closed = [word.replace(":8200", ":1") for word in words]
    run = subprocess.run([sys.executable, *closed], check=False, capture_output=True)
    assert run.returncode != 0
