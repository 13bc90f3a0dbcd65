"""Faults E04 to E06: Cluster, Sentinel, passwords, rights and TLS, each with real processes."""

import asyncio
import random
import re
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from epp.errors import StoreError
from epp.framework import EndpointId, Incarnation, PoolId
from epp.request.transport.tls import self_signed
from epp.state.store import layout
from epp.state.store.leases import RedisRegister
from epp.state.store.place import Access, read_access
from epp.state.store.redis_reader import RedisReader
from epp.state.store.redis_writer import RedisWriter
from tests.fakes.chains import KEYS, POOL, Chain, new_state, running_chain, until
from tests.fakes.redis_groups import Cluster, Watched, cluster, watched
from tests.fakes.redis_server import RedisServer, running

A = EndpointId(POOL, "a", 8000)
SECRET = "p@:/#%?x"


def chain_by(
    access: Access, reading: Access | None = None, *, pool: PoolId = POOL, streams: int = 1
) -> Chain:
    state = new_state(pool)
    members = [member.id for member in state.endpoints]
    reader = RedisReader(
        reading or access, pool, members=lambda: members, streams=streams, rng=random.Random(1)
    )
    return Chain(RedisWriter(access, pool, streams=streams, call_s=0.5), reader, state)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with cluster() as started:
        yield started


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Watched]:
    with watched(tmp_path) as started:
        yield started


async def test_E04_a_clusters_slots_are_found_and_a_failover_is_followed(nodes: Cluster) -> None:
    """Red when Place keeps the node that it was told at first."""
    chain = chain_by(read_access(nodes.url))
    owner = nodes.owner(layout.log_key(POOL))
    async with running_chain(chain):
        await until(chain.precise)
        owner.kill()
        try:
            await until(lambda: bool(chain.failures) and not chain.reader.connected, 10)
            chain.held = (*KEYS, 5)
            await until(chain.precise, 30)
            assert nodes.owner(layout.log_key(POOL)) is not owner
        finally:
            owner.start()


async def test_E04_several_streams_lie_on_several_nodes(nodes: Cluster) -> None:
    """Red when a stream's keys do not share one tag: scripts would cross slots."""
    pool = PoolId("spread")
    chain = chain_by(read_access(nodes.url), pool=pool, streams=8)
    async with running_chain(chain):
        await until(chain.precise, 15)
        await until(lambda: chain.reader.connected)
        assert chain.failures == []
    owners = {nodes.owner(layout.log_key(pool, number)).port for number in range(8)}
    assert len(owners) > 1


async def test_E04_a_cluster_that_is_named_as_one_server_is_told_in_an_error() -> None:
    """Red when a MOVED answer ends the writer's task, or is taken for success."""
    with running("--cluster-enabled", "yes") as server:
        async with running_chain(chain_by(read_access(server.url))) as chain:
            await until(lambda: bool(chain.failures and chain.reader.last_error))
            assert "CLUSTERDOWN" in chain.failures[0].upper() + chain.reader.last_error.upper()


async def test_E05_sentinels_name_the_new_primary(group: Watched) -> None:
    """Red when Place asks Sentinels only once."""
    chain = chain_by(read_access(group.url))
    async with running_chain(chain):
        await until(chain.precise)
        group.primary.kill()
        await until(lambda: bool(chain.failures))
        chain.held = (*KEYS, 5)
        await until(chain.precise, 30)
        assert "role:master" in group.replica.command("INFO", "replication")


async def test_E05_a_sentinel_that_is_away_is_passed_over(group: Watched) -> None:
    """Red when the first Sentinel's refusal is the last word."""
    group.sentinels[0].kill()
    async with running_chain(chain_by(read_access(group.url))) as chain:
        await until(chain.precise)
        assert chain.reader.connected


async def test_E06_odd_passwords_work_and_never_show() -> None:
    """Red when the password is put into the URL unquoted, or into an error's text."""
    with running("--requirepass", SECRET) as server:
        async with running_chain(chain_by(read_access(server.url, password=SECRET))) as chain:
            await until(chain.precise)
        wrong = read_access(server.url, password="wrong" + SECRET)
        assert SECRET not in repr(wrong)
        async with running_chain(chain_by(wrong)) as chain:
            await until(lambda: bool(chain.failures and chain.reader.last_error))
            assert chain.stepped_down()
            for text in (*chain.failures, chain.reader.last_error):
                assert SECRET not in text


async def test_E06_a_password_that_changes_under_way_is_read_again(tmp_path: Path) -> None:
    """Red when the file is read once."""
    file = tmp_path / "password"
    file.write_text("first\n")
    with running("--requirepass", "first") as server:
        access = read_access(server.url, password_file=file)
        async with running_chain(chain_by(access)) as chain:
            await until(chain.precise)
            authorised(server, "first", "CONFIG", "SET", "requirepass", "second")
            authorised(server, "second", "CLIENT", "KILL", "TYPE", "normal")
            await until(lambda: bool(chain.failures and chain.reader.last_error))
            file.write_text("second\n")
            chain.held = (*KEYS, 5)
            await until(chain.precise)
            assert chain.reader.counts["reconnects"] >= 1


async def test_E06_a_password_file_that_is_gone_is_a_store_error(tmp_path: Path) -> None:
    """Red when the client lets another error out than StoreError."""
    with running("--requirepass", SECRET) as server:
        access = read_access(server.url, password_file=tmp_path / "absent")
        writer = RedisWriter(access, POOL)
        with pytest.raises(StoreError, match="password file"):
            await writer.claim(Incarnation(A, 1), 1)
        await writer.close()


def authorised(server: RedisServer, password: str, *words: str) -> None:
    quoted = [f"${len(word)}\r\n{word}\r\n" for word in ("AUTH", password)]
    login = "*2\r\n" + "".join(quoted)
    server.command(*words, before=login.encode())


async def test_E06_the_least_rights_of_the_docstring_are_enough() -> None:
    """Red when a script or the reader uses a command that the documented ACL does not name."""
    documented = " ".join((layout.__doc__ or "").split())
    with running() as server:
        for user in ("Writers", "Readers"):
            named = re.search(rf"{user}: `(.*?)`", documented)
            assert named is not None
            rights = named[1].replace("<pool>", POOL).replace("%R~", "~")  # %R~ is Redis 7's
            server.command("ACL", "SETUSER", user, "on", f">{SECRET}", *rights.split())
        access = read_access(server.url, password=SECRET)
        writers, readers = replace(access, user="Writers"), replace(access, user="Readers")
        async with running_chain(chain_by(writers, readers)) as chain:
            await until(chain.precise)
            chain.reader.streams[0].reread([A])
            await until(lambda: chain.reader.counts["snapshots"] >= 2)
            await until(chain.precise)
            successor = RedisWriter(writers, POOL)
            assert await successor.recall(Incarnation(A, 5)) == b"memory"
            await successor.close()
            register = RedisRegister(readers, POOL, "replica")
            assert await register.take("planner", 1.0)
            await register.release("planner")
            await register.close()
            assert chain.failures == []
            assert chain.reader.counts["errors"] == 0
        stranger = RedisWriter(writers, PoolId("other"))
        with pytest.raises(StoreError, match=r"(?i)permission"):
            await stranger.claim(Incarnation(EndpointId(PoolId("other"), "a", 1), 1), 1)
        await stranger.close()


@asynccontextmanager
async def encrypted(server: RedisServer, context: ssl.SSLContext) -> AsyncIterator[int]:
    """TLS in front of a server that may have been built without; yields the port."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", server.port)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(pump(reader, forth))
            tasks.create_task(pump(back, writer))

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with listening:
        yield listening.sockets[0].getsockname()[1]


async def test_E06_tls_with_an_authority_of_ones_own_and_not_without(tmp_path: Path) -> None:
    """Red when certificates are not verified."""
    certificate, key = self_signed(["127.0.0.1"])
    pem = tmp_path / "both.pem"
    pem.write_bytes(certificate + key)
    (tmp_path / "ca.pem").write_bytes(certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    with running() as server:
        async with encrypted(server, context) as port:
            url = f"rediss://127.0.0.1:{port}/0"
            async with running_chain(
                chain_by(read_access(url, ca_file=tmp_path / "ca.pem"))
            ) as chain:
                await until(chain.precise)
            async with running_chain(chain_by(read_access(url))) as chain:
                await until(lambda: bool(chain.failures and chain.reader.last_error))
                assert "CERTIFICATE_VERIFY_FAILED" in chain.failures[0]
                assert not chain.precise()
