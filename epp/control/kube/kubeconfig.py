"""A kubeconfig: where a cluster is and who we are, as kubectl reads it.

Of several contexts the current one holds. A user is known by a token, a file with one, a client
certificate, or a program that gives either (`exec`, as the clouds have it). The `auth-provider`
plugins that came before those programs are refused, as kubectl itself refuses most of them.
"""

import asyncio
import base64
import binascii
import json
import os
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from epp.errors import ConfigError

from .access import Access, Anonymous, Identity, Token, TokenFile

EXEC_S = 30.0
"""How long a program that gives credentials may take."""


def read_kubeconfig(path: Path) -> Access:
    """Raises ConfigError, which names the part that cannot be used."""
    file = str(path)
    try:
        found = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise ConfigError(file, f"cannot be read: {error.strerror or error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(file, f"is no YAML: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(file, "is no kubeconfig: it must be a mapping")
    try:
        return _access(file, path.parent, found)
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(file, f"is no kubeconfig: {error!r}") from error


def _access(file: str, at: Path, found: Mapping[str, Any]) -> Access:
    context = _named(file, found, "contexts", "context", found.get("current-context"))
    cluster = _named(file, found, "clusters", "cluster", context.get("cluster"))
    user = _named(file, found, "users", "user", context.get("user"))
    url = str(cluster.get("server") or "").rstrip("/")
    if not url.startswith(("https://", "http://")):
        raise ConfigError(file, f"the cluster {context.get('cluster')!r} has no server URL")
    tls = _tls(file, at, cluster, user) if url.startswith("https") else None
    return Access(url=url, tls=tls, identity=_identity(file, at, user, tls), source=file)


def _named(
    file: str, found: Mapping[str, Any], many: str, one: str, name: object
) -> dict[str, Any]:
    if not name:
        raise ConfigError(file, f"names no {one}: set current-context")
    for entry in found.get(many) or ():
        if isinstance(entry, dict) and entry.get("name") == name:
            return dict(entry.get(one) or {})
    raise ConfigError(file, f"has no {one} {name!r} among its {many}")


def _tls(
    file: str, at: Path, cluster: Mapping[str, Any], user: Mapping[str, Any]
) -> ssl.SSLContext:
    try:
        authority = _content(at, cluster, "certificate-authority")
        tls = ssl.create_default_context(cadata=authority.decode() if authority else None)
        if cluster.get("insecure-skip-tls-verify"):
            tls.check_hostname = False
            tls.verify_mode = ssl.CERT_NONE
        certificate = _content(at, user, "client-certificate")
        key = _content(at, user, "client-key")
        if certificate and key:
            _show(tls, certificate, key)
    except (OSError, ssl.SSLError, binascii.Error, UnicodeDecodeError) as error:
        raise ConfigError(file, f"its certificates cannot be used: {error}") from error
    return tls


def _content(at: Path, entry: Mapping[str, Any], name: str) -> bytes | None:
    """What stands in the file itself, or in the one that it names."""
    data, named = entry.get(f"{name}-data"), entry.get(name)
    if data:
        return base64.b64decode(str(data), validate=True)
    return (at / str(named)).read_bytes() if named else None


def _show(tls: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Make this the client's certificate, which only files can give."""
    with tempfile.NamedTemporaryFile() as held:
        held.write(certificate + b"\n" + key)
        held.flush()
        tls.load_cert_chain(held.name)


def _identity(file: str, at: Path, user: Mapping[str, Any], tls: ssl.SSLContext | None) -> Identity:
    if user.get("tokenFile"):
        return TokenFile(at / str(user["tokenFile"]))
    if user.get("token"):
        return Token(str(user["token"]))
    if user.get("exec"):
        return Program(user["exec"], at, tls)
    for refused in ("auth-provider", "username"):
        if user.get(refused):
            raise ConfigError(file, f"{refused!r} is not supported: use a token or exec")
    return Anonymous()


class Program:
    """A program that gives credentials, asked again when they are refused or over."""

    def __init__(self, said: Mapping[str, Any], at: Path, tls: ssl.SSLContext | None) -> None:
        self._command = [str(said["command"]), *map(str, said.get("args") or ())]
        variables = {str(one["name"]): str(one["value"]) for one in said.get("env") or ()}
        asked = {"apiVersion": said.get("apiVersion"), "kind": "ExecCredential"}
        info = json.dumps({**asked, "spec": {"interactive": False}})
        self._environment = {**os.environ, **variables, "KUBERNETES_EXEC_INFO": info}
        self._at = at
        self._tls = tls
        self._headers: dict[str, str] | None = None

    async def headers(self, *, renewed: bool) -> Mapping[str, str]:
        """Raises OSError when the program fails, or says what is no credential."""
        if self._headers is None or renewed:
            self._headers = await self._ask()
        return self._headers

    async def _ask(self) -> dict[str, str]:
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            env=self._environment,
            cwd=self._at,
        )
        try:
            async with asyncio.timeout(EXEC_S):
                output, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise OSError(f"{self._command[0]} took longer than {EXEC_S:g} s") from None
        if process.returncode:
            raise OSError(f"{self._command[0]} ended with status {process.returncode}")
        try:
            status = json.loads(output)["status"]
            certificate = status.get("clientCertificateData")
            if certificate and self._tls is not None:
                _show(self._tls, certificate.encode(), status["clientKeyData"].encode())
        except (ValueError, KeyError, TypeError, AttributeError, ssl.SSLError) as error:
            raise OSError(f"{self._command[0]} gave no ExecCredential: {error}") from error
        token = status.get("token")
        return {"Authorization": f"Bearer {token}"} if token else {}
