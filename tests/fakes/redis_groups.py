"""Several real redis-servers: a primary with a replica and Sentinels, and a Cluster."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.fakes.redis_server import RedisServer
from tests.timing import scaled

SERVICE = "log"
_SENTINEL = """
sentinel monitor {service} 127.0.0.1 {port} 2
sentinel down-after-milliseconds {service} 500
sentinel failover-timeout {service} 2000
"""


def wait_for(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + scaled(seconds)
    while not holds():
        assert time.monotonic() < deadline, "the servers did not get there in time"
        time.sleep(0.05)


@dataclass
class Watched:
    """A primary and a replica, watched by three Sentinels."""

    primary: RedisServer
    replica: RedisServer
    sentinels: list[RedisServer]

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{one.port}" for one in self.sentinels)
        return f"redis+sentinel://{hosts}/{SERVICE}"


@contextlib.contextmanager
def watched(scratch: Path) -> Iterator[Watched]:
    with contextlib.ExitStack() as stack:
        primary = _started(stack, RedisServer("--repl-diskless-sync-delay", "0"))
        replica = _started(stack, RedisServer("--replicaof", "127.0.0.1", str(primary.port)))
        wait_for(lambda: "master_link_status:up" in replica.command("INFO", "replication"))
        sentinels = []
        for number in range(3):
            file = scratch / f"sentinel-{number}.conf"
            file.write_text(_SENTINEL.format(service=SERVICE, port=primary.port))
            sentinel = RedisServer(config=file)
            sentinels.append(_started(stack, sentinel))
        group = Watched(primary, replica, sentinels)
        for sentinel in sentinels:
            wait_for(lambda sentinel=sentinel: _knows_all(sentinel))
        yield group


def _knows_all(sentinel: RedisServer) -> bool:
    said = sentinel.command("INFO", "sentinel")
    return "slaves=1,sentinels=3" in said


def _started(stack: contextlib.ExitStack, server: RedisServer) -> RedisServer:
    stack.callback(server.close)
    server.start()
    return server


@dataclass
class Cluster:
    """Three primaries, each with a replica."""

    nodes: list[RedisServer]

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[:3])
        return f"redis+cluster://{hosts}"

    def owner(self, key: str) -> RedisServer:
        """The primary that has a key's slot just now."""
        for node in self.nodes:
            with contextlib.suppress(OSError):
                if "MOVED" not in node.command("EXISTS", key) and "role:master" in node.command(
                    "INFO", "replication"
                ):
                    return node
        raise AssertionError("nobody owns the slot")


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    with contextlib.ExitStack() as stack:
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000")
        more = ("--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0")
        nodes = [_started(stack, RedisServer(*options, *more)) for _ in range(6)]
        first = nodes[0]
        for number, node in enumerate(nodes[:3]):
            slots = range(number * 5462, min(16384, (number + 1) * 5462))
            node.command("CLUSTER", "ADDSLOTS", *map(str, slots))
        for number, node in enumerate(nodes):
            node.command("CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
            if node is not first:
                node.command("CLUSTER", "MEET", "127.0.0.1", str(first.port))
        for node in nodes:
            wait_for(lambda node=node: "cluster_known_nodes:6" in node.command("CLUSTER", "INFO"))
        for primary, replica in zip(nodes[:3], nodes[3:], strict=True):
            name = primary.command("CLUSTER", "MYID").split()[1]
            wait_for(lambda r=replica, n=name: "OK" in r.command("CLUSTER", "REPLICATE", n))
        for node in nodes:
            wait_for(lambda node=node: "cluster_state:ok" in node.command("CLUSTER", "INFO"))
        for replica in nodes[3:]:
            wait_for(lambda r=replica: "master_link_status:up" in r.command("INFO", "replication"))
        yield Cluster(nodes)
