"""How the API server is found, and who we are to it."""

import base64
import ssl
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from epp.config.serve import serve_settings
from epp.control.kube.access import TokenFile, in_cluster
from epp.control.kube.kubeconfig import read_kubeconfig
from epp.errors import ConfigError
from epp.members import FromCluster, FromFile, source
from epp.request.transport.tls import self_signed

BEARER = "Authorization"


def config(directory: Path, *, cluster: Any = None, user: Any = None, current: str = "c") -> Path:
    path = directory / "config"
    text = {
        "current-context": current,
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": cluster or {"server": "https://h:6443/"}}],
        "users": [{"name": "u", "user": user or {}}],
    }
    path.write_text(yaml.safe_dump(text))
    return path


async def test_a_pod_finds_its_cluster_and_reads_its_token_again(tmp_path: Path) -> None:
    now = 0.0
    certificate, _ = self_signed(["localhost"])
    (tmp_path / "ca.crt").write_bytes(certificate)
    (tmp_path / "token").write_text("one\n")
    here = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    access = in_cluster(here, tmp_path)
    assert access is not None
    assert access.url == "https://[fd00::1]:6443"
    assert access.tls is not None
    assert access.tls.verify_mode is ssl.CERT_REQUIRED
    identity = TokenFile(tmp_path / "token", clock=lambda: now)
    assert (await identity.headers(renewed=False))[BEARER] == "Bearer one"
    (tmp_path / "token").write_text("two\n")
    now = 59.0
    assert (await identity.headers(renewed=False))[BEARER] == "Bearer one"
    assert (await identity.headers(renewed=True))[BEARER] == "Bearer two"
    (tmp_path / "token").write_text("three\n")
    now = 120.0
    assert (await identity.headers(renewed=False))[BEARER] == "Bearer three"


def test_outside_of_a_cluster_there_is_none_and_a_pod_without_a_token_is_told(
    tmp_path: Path,
) -> None:
    assert in_cluster({}) is None
    with pytest.raises(ConfigError, match="service account's token"):
        in_cluster({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path)


@pytest.mark.parametrize("inline", [True, False])
async def test_tokens_and_certificates_may_stand_in_a_kubeconfig_or_beside_it(
    tmp_path: Path, inline: bool
) -> None:
    certificate, key = self_signed(["localhost"])
    (tmp_path / "tls.crt").write_bytes(certificate)
    (tmp_path / "tls.key").write_bytes(key)
    (tmp_path / "token").write_text("secret")
    if inline:
        user = {
            "client-certificate-data": base64.b64encode(certificate).decode(),
            "client-key-data": base64.b64encode(key).decode(),
            "token": "secret",
        }
    else:
        user = {"client-certificate": "tls.crt", "client-key": "tls.key", "tokenFile": "token"}
    cluster = {"server": "https://h:6443/", "certificate-authority": "tls.crt"}
    access = read_kubeconfig(config(tmp_path, cluster=cluster, user=user))
    assert access.url == "https://h:6443"
    assert access.tls is not None
    assert access.tls.cert_store_stats()["x509"] == 1
    assert await access.identity.headers(renewed=False) == {BEARER: "Bearer secret"}


async def test_a_program_may_give_the_token_and_is_asked_again_when_it_is_refused(
    tmp_path: Path,
) -> None:
    script = tmp_path / "give"
    script.write_text(
        "import os, json, pathlib\n"
        "assert json.loads(os.environ['KUBERNETES_EXEC_INFO'])['kind'] == 'ExecCredential'\n"
        "asked = pathlib.Path('asked'); asked.touch()\n"
        "asked.write_text(asked.read_text() + 'x')\n"
        "token = os.environ['WHO'] + str(len(asked.read_text()))\n"
        "print(json.dumps({'status': {'token': token}}))\n"
    )
    entry = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": [str(script)],
        "env": [{"name": "WHO", "value": "me"}],
    }
    identity = read_kubeconfig(config(tmp_path, user={"exec": entry})).identity
    for renewed, token in ((False, "me1"), (False, "me1"), (True, "me2")):
        assert (await identity.headers(renewed=renewed))[BEARER] == f"Bearer {token}"
    script.write_text("print('no credential')")
    with pytest.raises(OSError, match="gave no ExecCredential"):
        await identity.headers(renewed=True)
    script.write_text("raise SystemExit(3)")
    with pytest.raises(OSError, match="ended with status 3"):
        await identity.headers(renewed=True)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"current": "x"}, "has no context 'x'"),
        ({"current": ""}, "set current-context"),
        ({"cluster": {"server": "h"}}, "has no server URL"),
        ({"user": {"auth-provider": {"name": "oidc"}}}, "use a token or exec"),
        ({"user": {"username": "me"}}, "use a token or exec"),
        ({"user": {"exec": {"args": ["x"]}}}, "is no kubeconfig: KeyError"),
        ({"user": {"exec": 7}}, "is no kubeconfig"),
        ({"cluster": {"server": "https://h", "certificate-authority": "gone"}}, "certificates"),
        ({"cluster": {"server": "https://h", "certificate-authority-data": "%"}}, "certificates"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_says_which_part(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        read_kubeconfig(config(tmp_path, **changes))


@pytest.mark.parametrize(("text", "says"), [("[", "is no YAML"), ("7", "is no kubeconfig")])
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(ConfigError, match=says):
        read_kubeconfig(tmp_path / "config")


def test_members_come_from_the_file_else_from_the_kubeconfig_else_from_the_cluster(
    tmp_path: Path,
) -> None:
    def found(**given: object) -> FromFile | FromCluster:
        return source(serve_settings(given), None, "", {})

    path = config(tmp_path)
    assert isinstance(found(endpoints_file="e.yaml"), FromFile)
    chosen = found(kubeconfig=str(path), pool_name="p", pool_namespace="n")
    assert isinstance(chosen, FromCluster)
    assert (chosen.scope.pool, chosen.scope.namespace, chosen.scope.pods) == ("p", "n", None)
    labels = {"endpoint_selector": "a=b", "endpoint_target_ports": "8000,8001"}
    chosen = found(kubeconfig=str(path), **labels)
    assert isinstance(chosen, FromCluster)
    assert chosen.scope.pods is not None
    assert chosen.scope.pods.ports == (8000, 8001)
    for wrong, says in (
        ({}, "nobody says which endpoints there are"),
        ({"kubeconfig": str(path), "pool_group": "x"}, "--pool-group"),
        ({"kubeconfig": str(path), **labels, "endpoint_target_ports": "x"}, "expected ports"),
    ):
        with pytest.raises(ConfigError, match=says):
            found(**wrong)
