"""How simulated engines of other connectors find each other by a name."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from epp.sim.hashing import NO_NAMESPACE, Namespace
from epp.sim.meetings import Room, mooncake, offloading, sglang
from epp.sim.serving.rooms import MAX_OFFERS, Rooms
from epp.sim.serving.storage import Storage
from epp.sim.settings import EngineSettings
from epp.sim.transfer import NO_TRANSFER, MeetAsk, Transfer

PULL: dict[str, Any] = {
    "do_remote_prefill": True,
    "transfer_id": "x",
    "remote_bootstrap_addr": "http://[::1]:8998",
    "remote_engine_id": "e",
}


async def test_an_offer_is_taken_once_by_who_waits_for_its_name() -> None:
    rooms = Rooms()
    async with asyncio.TaskGroup() as tg:
        waiting = tg.create_task(rooms.take("b", 5))
        await asyncio.sleep(0)
        rooms.put("a", {"n": 1})
        rooms.put("b", {"n": 2})
    assert waiting.result() == {"n": 2}
    assert await rooms.take("b", 0) is None
    assert await rooms.take("a", 0) == {"n": 1}


async def test_the_oldest_of_too_many_offers_is_forgotten() -> None:
    rooms = Rooms()
    for number in range(MAX_OFFERS + 1):
        rooms.put(str(number), {})
    assert await rooms.take("0", 0) is None
    assert await rooms.take("1", 0) == {}
    assert await rooms.take(str(MAX_OFFERS), 0) == {}


def test_mooncake_pulls_only_with_all_that_it_must_know() -> None:
    assert mooncake({"do_remote_decode": True, "transfer_id": "x"}) == Transfer(
        offer=True, name="x"
    )
    assert mooncake(PULL) == Transfer(meet=MeetAsk("x", "::1", 8998, "e"))
    for name in PULL:
        assert mooncake({key: value for key, value in PULL.items() if key != name}) is NO_TRANSFER
    assert mooncake(None) is NO_TRANSFER


def test_the_other_connectors_names_are_read() -> None:
    assert offloading({"remote_decoder": {"kv_request_id": "x"}}).name == "x"
    peer = {"kv_request_id": "x", "remote_host": "h", "remote_port": 7777}
    assert offloading({"remote_prefiller": peer}).meet == MeetAsk("x", "h", 7777)
    assert offloading({"remote_prefiller": {"kv_request_id": "x"}}) == NO_TRANSFER
    room = Room("h", 8998, 7)
    assert sglang(room, prefills=True) == Transfer(offer=True, name="7")
    assert sglang(room, prefills=False).meet == MeetAsk("7", "h", 8998)


def test_a_storage_knows_prompts_by_tokens_adapter_and_salt(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    storage.save([1, 2, 3], NO_NAMESPACE, [(7, 0)])
    assert storage.load([1, 2, 3], NO_NAMESPACE) == ((7, 0),)
    assert storage.load([1, 2], NO_NAMESPACE) is None
    assert storage.load([1, 2, 3], Namespace(salt="s")) is None


def test_a_storage_belongs_to_its_connector() -> None:
    with pytest.raises(ValueError, match="kv_storage"):
        EngineSettings(kv_connector="shared-storage")
    with pytest.raises(ValueError, match="kv_storage"):
        EngineSettings(kv_storage=Path("x"))
    with pytest.raises(ValueError, match="kv_connector"):
        EngineSettings(kv_connector="nixl")  # type: ignore[arg-type]


def test_offloading_may_name_a_third_engine_that_has_some_of_the_prompt() -> None:
    source = {"kv_request_id": "s", "remote_host": "h", "remote_port": 9}
    at = MeetAsk("s", "h", 9)
    assert offloading({"remote_kv_source": source}) == Transfer(source=at)
    leg = {"remote_decoder": {"kv_request_id": "r"}, "remote_kv_source": source}
    assert offloading(leg) == Transfer(offer=True, name="r", source=at)
