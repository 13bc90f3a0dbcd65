"""The pool's Redis: who may do what, by a real server with the users that its script writes."""

import re
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from epp.errors import StoreError
from epp.framework import EndpointId, Incarnation, PoolId
from epp.state.store import layout
from epp.state.store.place import Access, read_access
from epp.state.store.redis_reader import RedisReader
from epp.state.store.redis_writer import RedisWriter
from tests.fakes.chains import POOL, Chain, new_state, running_chain, until
from tests.fakes.redis_server import RedisServer, knows_read_keys, running
from tests.manifests.rendered import ROOT

FILES = ROOT / "base" / "redis"
USERS = ("picker", "vllm", "prefill", "decode")


def _passwords(folder: Path) -> Path:
    folder.mkdir()
    for user in USERS:
        (folder / user).write_text(f"password of {user}\n")
    return folder


def _rights(folder: Path) -> Path:
    """As they are shipped, unless the server of the tests is older than they."""
    folder.mkdir()
    for file in FILES.glob("rights-of-*"):
        text = file.read_text()
        (folder / file.name).write_text(text if knows_read_keys() else text.replace("%R~", "~"))
    return folder


def _users(tmp_path: Path) -> Path:
    """As the pod's first container makes them."""
    rights, passwords = _rights(tmp_path / "rights"), _passwords(tmp_path / "keys")
    subprocess.run(
        ["sh", FILES / "users.sh", rights, passwords, tmp_path],
        check=True,
        env={"PATH": "/usr/bin:/bin", "POOL_NAME": POOL},
    )
    return tmp_path / "users.acl"


def _settings() -> list[str]:
    """Of redis.conf, as arguments, but for where it is."""
    words: list[str] = []
    for line in (FILES / "redis.conf").read_text().splitlines():
        name, _, value = line.partition(" ")
        if name and name not in {"#", "aclfile", "bind"}:
            words += [f"--{name}", *(word.strip('"') for word in value.split(" "))]
    return words


@contextmanager
def _server(tmp_path: Path) -> Iterator[RedisServer]:
    with running(*_settings(), "--aclfile", str(_users(tmp_path))) as server:
        yield server


def _as(user: str, server: RedisServer, passwords: Path) -> Access:
    url = server.url.replace("redis://", f"redis://{user}@")
    return read_access(url, password_file=passwords / user)


@pytest.mark.parametrize("engines", ["vllm", "prefill", "decode"])
async def test_pickers_and_engines_may_do_what_they_need(engines: str, tmp_path: Path) -> None:
    with _server(tmp_path) as server:
        keys = tmp_path / "keys"
        state = new_state(POOL)
        members = [member.id for member in state.endpoints]
        reader = RedisReader(_as("picker", server, keys), POOL, members=lambda: members)
        writer = RedisWriter(_as(engines, server, keys), POOL)
        async with running_chain(Chain(writer, reader, state)) as chain:
            await until(chain.precise)
            assert chain.failures == []


async def test_nobody_writes_for_another_pool_or_without_a_name(tmp_path: Path) -> None:
    other = PoolId("other")
    claimed = Incarnation(EndpointId(other, "a", 1), 1)
    with _server(tmp_path) as server:
        named = _as("prefill", server, tmp_path / "keys")
        for access in (named, replace(named, user=None), replace(named, user="decode")):
            writer = RedisWriter(access, other)
            with pytest.raises(StoreError):
                await writer.claim(claimed, 1)
            await writer.close()
        assert server.command("PING").startswith("-NOAUTH")


def test_the_rights_that_the_store_documents_are_granted_and_no_others() -> None:
    documented = " ".join((layout.__doc__ or "").split())
    for name, kind in (("Readers", "pickers"), ("Writers", "engines")):
        named = re.search(rf"{name}: `(.*?)`", documented)
        assert named
        assert set((FILES / f"rights-of-{kind}").read_text().split()) == set(named[1].split())


def test_the_file_of_users_tells_no_password_and_only_redis(tmp_path: Path) -> None:
    users = _users(tmp_path)
    assert "password" not in users.read_text()
    assert users.read_text().splitlines()[0] == "user default off"
    assert stat.S_IMODE(users.stat().st_mode) == 0o600
