"""Field faults of what the ports of a picker show, to whoever asks."""

import asyncio
import re
from pathlib import Path

from tests.fakes.backend import backend
from tests.fakes.picker_process import picker_process
from tests.timing import scaled

PAGES = (
    "/debug",
    "/debug/",
    "/debug/pprof",
    "/debug/pprof/heap",
    "/debug/vars",
    "/debug/plugins/state",
    "/debug/decisions",
    "/debug/endpoints",
    "/debug/state",
    "/debug/mode",
    "/docs",
    "/redoc",
    "/openapi.json",
    "/config",
    "/env",
    "/flags",
    "/..%2fdebug/decisions",
    "/%2e%2e/etc/passwd",
)


async def test_G08_every_port_shows_what_it_is_for_and_nothing_else(tmp_path: Path) -> None:
    """Protected by the admin port's own address; red when it listens where the others do."""
    async with (
        backend("b") as engine,
        picker_process(tmp_path, [engine.address], "--host", "0.0.0.0") as picker,
    ):
        listening = _listening(picker.process.pid)
        assert {port for _, port in listening} == set(picker.ports.values())
        alone = {port for host, port in listening if host == "127.0.0.1"}
        assert alone == {picker.ports["admin"], picker.ports["state"]}
        public = {name: picker.ports[name] for name in ("grpc", "health", "metrics", "state")}
        for name, port in public.items():
            for page in PAGES:
                status = await _get(port, page)
                assert status in ({404} if name == "metrics" else {0, 400, 404}), (name, page)
        assert await _get(picker.ports["metrics"], "/metrics") == 200
        admin = {page for page in PAGES if await _get(picker.ports["admin"], page) != 404}
        assert admin == {"/debug/decisions", "/debug/endpoints", "/debug/state", "/debug/mode"}


async def _get(port: int, path: str) -> int:
    """The status of a page; 0 where nobody speaks HTTP/1.1."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n".encode())
        async with asyncio.timeout(scaled(5)):
            line = await reader.readline()
    except (ConnectionError, TimeoutError):
        return 0
    finally:
        writer.transport.abort()
    found = re.match(rb"HTTP/1\.1 (\d{3})", line)
    return int(found[1]) if found else 0


def _listening(pid: int) -> set[tuple[str, int]]:
    """Where a process listens, as the kernel says."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found = re.fullmatch(r"socket:\[(\d+)\]", str(link.readlink()))
        except OSError:
            continue  # closed meanwhile
        if found:
            inodes.add(found[1])
    places = set()
    for table, width in (("tcp", 8), ("tcp6", 32)):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            host, _, port = fields[1].partition(":")
            if fields[3] == "0A" and fields[9] in inodes:
                loopback = width == 8 and host == "0100007F"
                places.add(("127.0.0.1" if loopback else "any", int(port, 16)))
    return places
