"""Where the API server is, how its certificate is checked, and who we are to it.

In a cluster that is said by the environment and the files of the service account, whose token is
read again every minute, for it is renewed on disk. Elsewhere a kubeconfig says it.
"""

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from epp.errors import ConfigError

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_S = 60.0
"""How long a token is used before its file is read again."""


class Identity(Protocol):
    """Who we are."""

    async def headers(self, *, renewed: bool) -> Mapping[str, str]:
        """For one request; `renewed`: the last ones were refused (401). Raises OSError."""
        ...


class Anonymous:
    """Nobody, or whoever a client certificate names."""

    async def headers(self, *, renewed: bool) -> Mapping[str, str]:
        return {}


class TokenFile:
    """A bearer token that is renewed in its file."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._token = ""
        self._read_at = -TOKEN_S

    async def headers(self, *, renewed: bool) -> Mapping[str, str]:
        now = self._clock()
        if renewed or now - self._read_at >= TOKEN_S:
            text = await asyncio.to_thread(self._path.read_text, encoding="ascii")
            self._token, self._read_at = text.strip(), now
        return {"Authorization": f"Bearer {self._token}"}


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token that stays."""

    token: str

    async def headers(self, *, renewed: bool) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {self.token}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """All that a connection needs."""

    url: str
    """Without a slash at the end."""
    tls: ssl.SSLContext | None = None
    """None: plain HTTP."""
    identity: Identity
    source: str
    """Where this was found, for people."""


def in_cluster(environment: Mapping[str, str], account: Path = ACCOUNT) -> Access | None:
    """As a pod finds it; None outside of a cluster. Raises ConfigError for missing files."""
    host = environment.get("KUBERNETES_SERVICE_HOST")
    port = environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        return None
    token, authority = account / "token", account / "ca.crt"
    try:
        token.read_bytes()
        tls = ssl.create_default_context(cafile=str(authority))
    except (OSError, ssl.SSLError) as error:
        what = f"cannot be used: {error}; the pod needs its service account's token mounted"
        raise ConfigError(str(account), what) from error
    at = f"[{host}]" if ":" in host else host
    return Access(
        url=f"https://{at}:{port}", tls=tls, identity=TokenFile(token), source=str(account)
    )
