"""`epp doctor`: over a folder, a kustomization, stdin, and the namespace of a live cluster."""

import copy
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from epp.control.kube.access import Access, Anonymous
from epp.control.kube.api import Api
from epp.doctor import cluster
from epp.doctor.examine import examined
from epp.doctor.findings import Finding, Level, ordered
from epp.doctor.folder import objects
from epp.errors import ConfigError
from epp.sim.apiserver.server import ApiServer
from tests.fakes.cluster import definition
from tests.manifests.broken import NOW
from tests.manifests.rendered import NAMESPACE, Object, rendered


def _run(*words: str, code: int, stdin: str = "") -> str:
    run = subprocess.run(
        [sys.executable, "-m", "epp.cli", "doctor", *words],
        check=False,
        capture_output=True,
        text=True,
        input=stdin,
    )
    assert run.returncode == code, run.stderr + run.stdout
    return run.stdout + run.stderr


def _broken() -> str:
    """Rendered, with a picker whose replicas each have a log of their own."""
    made = yaml.safe_dump_all(rendered("istio"))
    return made.replace("--store=redis", "--store=memory")


def test_a_kustomization_is_rendered_and_looked_at(tmp_path: Path) -> None:
    out = tmp_path / "llama"
    made = ["--pool", "llama", "--model", "m", "--engines", "2", "--gateway", "istio"]
    subprocess.run(
        [sys.executable, "-m", "epp.cli", "manifests", *made, "--out", str(out)],
        check=True,
        capture_output=True,
    )
    assert "0 errors, 0 warnings, 0 notes" in _run(str(out), code=0)


def test_findings_come_with_their_fix_and_an_exit_code(tmp_path: Path) -> None:
    (tmp_path / "all.yaml").write_text(_broken())
    said = _run(str(tmp_path), code=1)
    assert "error  store  Deployment team-a/epp, container epp" in said
    assert "fix: --store=redis" in said


def test_machines_get_json(tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(_broken())
    said = json.loads(_run(str(file), "--json", code=1))
    assert said["counts"] == {"error": 3, "warning": 0, "note": 0}
    assert said["objects"] == len(rendered("istio"))
    keys = {"check", "level", "where", "what", "fix"}
    assert all(one.keys() == keys and one["check"] == "store" for one in said["findings"])


def test_stdin_is_read_and_warnings_count_where_that_is_asked_for() -> None:
    made = yaml.safe_dump_all(rendered("istio")).replace("--enable-prompt-tokens-details", "--x")
    assert "0 errors, 2 warnings" in _run("-", code=0, stdin=made)
    assert "0 errors, 2 warnings" in _run("-", "--strict", code=1, stdin=made)


def test_what_cannot_be_looked_at_is_said_with_another_exit_code(tmp_path: Path) -> None:
    assert "no Kubernetes objects" in _run(str(tmp_path), code=2)
    assert "No such file" in _run(str(tmp_path / "no"), code=2)
    (tmp_path / "odd.yaml").write_text("a: [")
    assert "odd.yaml:1:5" in _run(str(tmp_path), code=2)
    (tmp_path / "kustomization.yaml").write_text("resources: [no.yaml]")
    assert "cannot be rendered" in _run(str(tmp_path), code=2)
    assert "--namespace" in _run(str(tmp_path), "-n", "x", code=2)
    assert "cannot be read" in _run("--kubeconfig", str(tmp_path / "no"), code=2)


def test_documents_that_are_no_objects_are_left_out() -> None:
    text = b"a: 1\n---\nkind: Pod\napiVersion: v1\n---\n[1]\n"
    assert list(objects(text, "x")) == [{"kind": "Pod", "apiVersion": "v1"}]
    with pytest.raises(ConfigError, match="x:1"):
        list(objects(b"{", "x"))


# A live cluster


@asynccontextmanager
async def _living(made: list[Object]) -> AsyncIterator[tuple[ApiServer, Api]]:
    """A server that has these objects, and a way to ask it."""
    server = ApiServer(chance=Random(5))
    for asked in cluster.KINDS:
        known = (server.store.resource(asked.group, each, asked.plural) for each in asked.versions)
        if asked.group and not any(known):
            scope = "Namespaced" if asked.namespaced else "Cluster"
            given = (asked.group, asked.versions[0], asked.plural, asked.kind)
            server.define(definition(*given, scope=scope))
    async with server:
        for one in made:
            _create(server, one)
        api = Api(Access(url=server.url, identity=Anonymous(), source="test"))
        try:
            yield server, api
        finally:
            await api.close()


def _create(server: ApiServer, made: Object) -> None:
    group, _, version = made["apiVersion"].rpartition("/")
    for of in server.store.served:
        if (of.group, of.version, of.kind) == (group, version, made["kind"]):
            server.store.create(of, NAMESPACE if of.namespaced else "", copy.deepcopy(made))


async def _found(api: Api) -> list[Finding]:
    seen = await cluster.seen(api, NAMESPACE)
    return ordered([*seen.notes, *examined(seen.deployed, NOW)])


async def test_nothing_is_wrong_with_a_cluster_that_has_what_we_ship() -> None:
    async with _living(list(rendered("istio"))) as (_, api):
        assert await _found(api) == []


async def test_a_fault_is_found_in_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a list comes in pages."""
    monkeypatch.setattr(cluster, "PAGE", 2)
    made = list(yaml.safe_load_all(_broken()))
    async with _living(made) as (_, api):
        found = await _found(api)
    assert {(one.check, one.level) for one in found} == {("store", Level.ERROR)}


async def test_pods_without_a_template_are_looked_at_once_for_each_owner() -> None:
    owner = [{"kind": "Rollout", "name": "x", "uid": "u-1", "apiVersion": "a/v1"}]
    labels = {"llm-d.ai/inference-serving": "true", "llm-d.ai/role": "decoder"}
    pods: list[Any] = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"pod-{number}",
                "namespace": NAMESPACE,
                "labels": labels,
                "ownerReferences": owner,
            },
            "spec": {"containers": [{"name": "vllm", "image": "vllm"}]},
        }
        for number in range(3)
    ]
    async with _living([*rendered("istio"), *pods]) as (_, api):
        found = await _found(api)
    roles = [one for one in found if one.check == "roles"]
    assert [one.where for one in roles] == [f"Pod {NAMESPACE}/pod-0"]


async def test_what_we_may_not_read_is_a_note_and_not_missed() -> None:
    made = [one for one in rendered("istio") if one["kind"] not in {"Role", "RoleBinding"}]
    async with _living(made) as (server, api):
        server.faults.codes = {("list", "roles"): 403, ("list", "rolebindings"): 403}
        found = await _found(api)
    assert {one.level for one in found} == {Level.NOTE}
    assert {one.where for one in found} == {
        "roles.rbac.authorization.k8s.io",
        "rolebindings.rbac.authorization.k8s.io",
    }


async def test_an_api_server_that_is_away_is_said_so() -> None:
    async with _living([]) as (server, api):
        await server.stop()
        with pytest.raises(cluster.NoAnswer, match="cannot list pods"):
            await cluster.seen(api, NAMESPACE)
