"""The sidecar's way to its store: one URL says which."""

from urllib.parse import urlsplit

from epp.errors import ConfigError
from epp.framework import PoolId

from . import Writer
from .memory import StateWriter
from .redis import RedisWriter

DEFAULT_PORT = 9004


def open_writer(url: str, pool: PoolId, token: str | None = None) -> Writer:
    """`tcp://host[:port]` is a picker's state port, `redis[s]://…` a Redis.

    `token` is the state port's token or, for a URL without one, the Redis password. Connects
    lazily. Raises ConfigError for a URL of another kind; the message never quotes the URL.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError("", "state URL: not a URL, or its port is not a number") from error
    if parts.scheme == "tcp" and host:
        return StateWriter(host, DEFAULT_PORT if port is None else port, token=token)
    if parts.scheme in {"redis", "rediss"}:
        return RedisWriter(url, pool, password=None if parts.password else token)
    raise ConfigError("", "state URL: use tcp://host:port (a picker's state port) or redis://…")
