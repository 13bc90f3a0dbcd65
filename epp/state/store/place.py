"""Where the Redis is that owns a pool's keys: one server, what Sentinels say, or a Cluster's node.

`redis[s]://[user[:password]@]host[:port][/db]`, one server;
`redis[s]+sentinel://[user@]host:port,host:port/service[/db]`, the primary that one of them names;
`redis[s]+cluster://[user@]host:port,host:port`, the owner of the keys' slot by any of the nodes.

A place is asked again whenever a connection was lost, so that a failover is followed.
"""

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import SplitResult, unquote, urlsplit

from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.credentials import CredentialProvider
from redis.exceptions import AuthenticationError, RedisError

from epp.errors import ConfigError, StoreError

from .line import Client, client_of

Host = tuple[str, int]
Kind = Literal["single", "sentinel", "cluster"]
KINDS: dict[str, Kind] = {"": "single", "sentinel": "sentinel", "cluster": "cluster"}
DEFAULT_PORT = 6379
SENTINEL_PORT = 26379
MAX_PASSWORD = 4096
"""Bytes of a password file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How to get at a Redis. `repr` shows no secret."""

    kind: Kind
    hosts: tuple[Host, ...]
    service: str = ""
    """Name of the primary, for Sentinels."""
    database: int = 0
    tls: bool = False
    ca_file: Path | None = None
    """Who signs the server's certificate; None: whom the system trusts."""
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    password_file: Path | None = None
    """Read again for every connection, so that a password can be changed under way."""

    @property
    def where(self) -> str:
        """For messages."""
        return ",".join(f"{host}:{port}" for host, port in self.hosts)


def read_access(
    url: str,
    *,
    password: str | None = None,
    password_file: Path | None = None,
    ca_file: Path | None = None,
) -> Access:
    """Read a URL; what it says itself goes first. Raises ConfigError that never quotes it."""
    parts = urlsplit(url)
    scheme, _, word = parts.scheme.partition("+")
    kind = KINDS.get(word)
    if scheme not in {"redis", "rediss"} or kind is None:
        raise ConfigError("", "Redis URL: use redis://, rediss://, or redis+sentinel:// and such")
    hosts = _hosts(parts, SENTINEL_PORT if kind == "sentinel" else DEFAULT_PORT)
    path = [piece for piece in parts.path.split("/") if piece]
    service = path.pop(0) if kind == "sentinel" and path else ""
    database = path.pop(0) if path else "0"
    wrong = path or parts.query or not database.isdigit() or (kind == "cluster" and database != "0")
    if wrong or (kind == "single" and len(hosts) != 1) or (kind == "sentinel" and not service):
        raise ConfigError("", "Redis URL: " + _SHAPES[kind])
    user, own = _user(parts)
    return Access(
        kind=kind,
        hosts=hosts,
        service=service,
        database=int(database),
        tls=scheme == "rediss",
        ca_file=ca_file,
        user=user,
        password=own or password,
        password_file=None if own else password_file,
    )


_SHAPES: dict[Kind, str] = {
    "single": "one server looks like redis://host:6379/0",
    "sentinel": "Sentinels look like redis+sentinel://host:26379,host:26379/service",
    "cluster": "a Cluster looks like redis+cluster://host:6379,host:6379",
}


def _hosts(parts: SplitResult, port: int) -> tuple[Host, ...]:
    hosts: list[Host] = []
    for text in parts.netloc.rpartition("@")[2].split(","):
        try:
            one = urlsplit(f"//{text}")
            hosts.append((one.hostname or "localhost", one.port or port))
        except ValueError:
            raise ConfigError("", "Redis URL: a port is not a number") from None
    return tuple(hosts)


def _user(parts: SplitResult) -> tuple[str | None, str | None]:
    name, _, password = parts.netloc.rpartition("@")[0].partition(":")
    return unquote(name) or None, unquote(password) or None


class Place:
    """Opens connections to whoever owns a key just now."""

    def __init__(self, access: Access, key: str, timeout_s: float, *, once: bool = False) -> None:
        """`once`: for whom a line that was lost is news; see `line.client_of`."""
        self.access = access
        self._once = once
        self._slot = key_slot(key.encode())
        self._timeout_s = timeout_s
        self._nodes = access.hosts
        """Who may know the way: as configured, and as a Cluster said."""

    async def open(self) -> Client:
        """A client of one connection to the owner. Raises StoreError, RedisError, OSError."""
        match self.access.kind:
            case "single":
                host = self.access.hosts[0]
            case "sentinel":
                host = await self._first(self._ask_sentinel)
            case "cluster":
                host = await self._first(self._ask_node)
        return self._client(host)

    async def _first(self, ask: Any) -> Host:
        """The first answer; who answers is asked first the next time."""
        why = "nobody knows the way"
        for node in self._nodes:
            try:
                found: Host | None = await ask(node)
            except (RedisError, OSError) as error:
                why = f"{type(error).__name__} at {node[0]}:{node[1]}"
                continue
            if found is not None:
                rest = [one for one in self._nodes if one != node]
                self._nodes = (node, *rest)
                return found
        raise StoreError(why)

    async def _ask_sentinel(self, node: Host) -> Host | None:
        """Without the password first: Sentinels seldom have one, and refuse one they do not."""
        try:
            return await self._primary(self._client(node, secret=False, database=0))
        except AuthenticationError:
            return await self._primary(self._client(node, database=0))

    async def _primary(self, sentinel: Client) -> Host | None:
        try:
            answer: Any = await sentinel.execute_command(  # type: ignore[no-untyped-call]
                "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.access.service
            )
        finally:
            sentinel.cut()
        return None if answer is None else (_text(answer[0]), int(answer[1]))

    async def _ask_node(self, node: Host) -> Host | None:
        client = self._client(node)
        try:
            ranges: Any = await client.execute_command(  # type: ignore[no-untyped-call]
                "CLUSTER SLOTS"
            )
        finally:
            client.cut()
        owner: Host | None = None
        known: dict[Host, None] = dict.fromkeys((node, *self.access.hosts))
        for first, last, primary, *_ in ranges:
            host = (_text(primary[0]) or node[0], int(primary[1]))
            known[host] = None
            if int(first) <= self._slot <= int(last):
                owner = host
        self._nodes = tuple(known)
        return owner

    def _client(self, host: Host, *, secret: bool = True, database: int | None = None) -> Client:
        """One connection, no retries behind our back; callers put a time limit on every call.

        Not by `socket_timeout`: with one, redis-py sends through `asyncio.wait_for`, which on
        Python 3.11 can swallow a cancellation, and a task that was cancelled would go on for ever.
        """
        access = self.access
        secured: dict[str, Any] = {}
        if access.tls:
            secured = {
                "ssl_cert_reqs": ssl.CERT_REQUIRED,
                "ssl_ca_certs": None if access.ca_file is None else str(access.ca_file),
                "ssl_check_hostname": True,
            }
        return client_of(
            tls=access.tls,
            once=self._once,
            host=host[0],
            port=host[1],
            db=access.database if database is None else database,
            credential_provider=_Credentials(access) if secret and _has_secret(access) else None,
            socket_timeout=None,
            socket_connect_timeout=self._timeout_s,
            socket_keepalive=True,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            **secured,
        )


def _has_secret(access: Access) -> bool:
    return access.password is not None or access.password_file is not None


class _Credentials(CredentialProvider):
    """Asked by the client for every connection that it opens."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        access = self._access
        password = access.password or ""
        if access.password_file is not None:
            password = read_password(access.password_file)
        return (password,) if access.user is None else (access.user, password)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """The client's own warns at each connection that it is not overridden."""
        return self.get_credentials()


def read_password(path: Path) -> str:
    """The file's text without a line's end. Raises StoreError that does not quote it."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_PASSWORD + 1)
        text = data.decode().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"the password file {path} cannot be read: {error}") from None
    if not text or len(data) > MAX_PASSWORD:
        raise StoreError(f"the password file {path} is empty or too large")
    return text


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")
