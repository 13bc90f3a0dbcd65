"""The ways to a store: one URL says which."""

from pathlib import Path
from urllib.parse import urlsplit

from epp.errors import ConfigError
from epp.framework import PoolId

from . import Writer
from .port_writer import StateWriter

DEFAULT_PORT = 9004


def open_writer(
    url: str,
    pool: PoolId,
    token: str | None = None,
    *,
    password_file: Path | None = None,
    ca_file: Path | None = None,
    streams: int = 1,
) -> Writer:
    """`tcp://host[:port]` is a picker's state port, `redis…://…` a Redis; see `place`.

    `token` is the state port's token or, for a URL without one, the Redis password. Connects
    lazily. Raises ConfigError for a URL of another kind; the message never quotes the URL.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError as error:
        raise ConfigError("", "state URL: not a URL") from error
    if parts.scheme == "tcp" and host:
        try:
            port = parts.port
        except ValueError as error:
            raise ConfigError("", "state URL: its port is not a number") from error
        return StateWriter(host, DEFAULT_PORT if port is None else port, token=token)
    if parts.scheme.partition("+")[0] in {"redis", "rediss"}:
        # A sidecar beside a picker's port is spared the memory of Redis' client.
        from .place import read_access  # noqa: PLC0415
        from .redis_writer import RedisWriter  # noqa: PLC0415

        access = read_access(url, password=token, password_file=password_file, ca_file=ca_file)
        return RedisWriter(access, pool, streams=streams)
    raise ConfigError("", "state URL: use tcp://host:port (a picker's state port) or redis://…")
