"""Parameters of a handoff as an engine reads them, and pins on a clock of their own."""

from typing import Any

import pytest

from epp.sim.kv import BlockPool
from epp.sim.pins import REMEMBERED, Pins
from epp.sim.serving.recorder import Recorder
from epp.sim.settings import EngineSettings
from epp.sim.transfer import NO_TRANSFER, Misuse, Offer, Transfer, read_params

PULL: dict[str, Any] = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[3, 1]],
    "remote_engine_id": "e",
    "remote_request_id": "r",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
}


@pytest.mark.parametrize(
    "params", [None, {}, {"do_remote_decode": False}, {"do_remote_prefill": False}, {"x": 1}]
)
def test_nothing_is_handed_over_unless_asked_for(params: object) -> None:
    assert read_params(params) is NO_TRANSFER


def test_a_prefill_leg_offers_whatever_its_null_members_say() -> None:
    null = dict.fromkeys(["remote_engine_id", "remote_block_ids", "remote_host", "remote_port"])
    assert read_params({"do_remote_decode": True, **null}) == Transfer(offer=True)


def test_an_offer_is_read_back_as_it_was_written() -> None:
    offer = Offer(request_id="r", blocks=(3, 1), tokens=20, cached_tokens=16)
    ask = read_params(offer.params(engine_id="e", host="::1", port=5600)).pull
    assert ask is not None
    assert (ask.request_id, ask.blocks, ask.engine_id) == ("r", (3, 1), "e")
    assert (ask.host, ask.port, ask.cached_tokens, ask.heartbeats) == ("::1", 5600, 16, True)


def test_the_flat_list_of_older_engines_is_read_too() -> None:
    ask = read_params({**PULL, "remote_block_ids": [3, 1]}).pull
    assert ask is not None
    assert ask.blocks == (3, 1)


def test_without_the_size_of_the_other_engine_there_are_no_heartbeats() -> None:
    ask = read_params({name: value for name, value in PULL.items() if name != "tp_size"}).pull
    assert ask is not None
    assert not ask.heartbeats


@pytest.mark.parametrize("blocks", [None, "1", 3, [["a"]], [[1], [2]], {}, [[-1]], [[2**64]]])
def test_a_pull_without_usable_blocks_is_fatal(blocks: object) -> None:
    assert read_params({**PULL, "remote_block_ids": blocks}).misuse is Misuse.FATAL
    assert read_params({"do_remote_prefill": True}).misuse is Misuse.FATAL


@pytest.mark.parametrize("params", ["x", [1], 3])
def test_parameters_that_are_no_object_are_fatal_inside_the_engine(params: object) -> None:
    assert read_params(params).misuse is Misuse.FATAL


@pytest.mark.parametrize(
    "name", ["remote_engine_id", "remote_request_id", "remote_host", "remote_port"]
)
def test_a_pull_that_does_not_say_from_where_is_stuck(name: str) -> None:
    assert read_params({**PULL, name: None}).misuse is Misuse.STUCK
    assert read_params({k: v for k, v in PULL.items() if k != name}).misuse is Misuse.STUCK


def pinned(lease_s: float = 6.0) -> tuple[Pins, BlockPool]:
    pool = BlockPool(8, 16)
    return Pins(pool, lease_s), pool


def test_a_heartbeat_gives_two_thirds_of_a_lease_and_never_shortens_one() -> None:
    pins, pool = pinned()
    pins.issue("a", pool.allocate(2), 0.0)
    pins.beat(["a", "unknown"], 1.0)
    pins.expire(5.9)
    assert pins.blocks == 2
    pins.beat(["a"], 5.0)
    pins.expire(8.9)
    assert len(pins) == 1
    pins.expire(9.0)
    assert (len(pins), pool.used, pins.counters.expired) == (0, 0, 1)
    assert (pins.next_at, pins.counters.heartbeats) == (None, 2)


def test_every_end_of_a_pin_has_its_own_count() -> None:
    pins, pool = pinned()
    for name in "abc":
        pins.issue(name, pool.allocate(1), 0.0)
    pins.read("a", [0])
    pins.hand_back("b")
    pins.expire(6.0)
    pins.read("a", [0])
    pins.read("c", [0])
    pins.read("d", [0])
    pins.hand_back("c")
    count = pins.counters
    assert (count.issued, count.pulled, count.returned, count.expired) == (3, 1, 1, 1)
    assert (count.reused, count.late, count.unknown, count.stray) == (1, 1, 1, 1)
    assert count.after_end == 4
    assert pool.used == 0


@pytest.mark.parametrize("block", [-1, 8])
def test_a_block_that_is_not_there_cannot_be_read_and_ends_no_pin(block: int) -> None:
    pins, pool = pinned()
    pins.issue("a", pool.allocate(1), 0.0)
    with pytest.raises(IndexError):
        pins.read("a", [block])
    assert len(pins) == 1


def test_so_many_ended_pins_are_remembered_and_no_more() -> None:
    pins, pool = pinned()
    for number in range(REMEMBERED + 1):
        pins.issue(str(number), pool.allocate(1), 0.0)
        pins.hand_back(str(number))
    pins.read("1", [0])
    pins.read("0", [0])
    assert (pins.counters.reused, pins.counters.unknown) == (1, 1)


def test_requests_are_kept_up_to_a_number_and_up_to_a_size() -> None:
    recorder = Recorder(max_requests=3, max_bytes=10)
    for _ in range(4):
        recorder.note("POST", "/", [], b"123")
    assert [one.number for one in recorder.requests] == [2, 3, 4]
    recorder.note("POST", "/", [], b"1234567")
    assert [one.number for one in recorder.requests] == [4, 5]
    recorder.note("POST", "/", [], b"12345678901")
    assert recorder.requests == ()
    assert recorder.total == 6


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kv_role", "prefill"),
        ("kv_load_failure_policy", "retry"),
        ("lease_s", 0.0),
        ("pull_tokens_per_s", 0.0),
        ("pull_setup_s", -1.0),
        ("kv_bytes_per_token", -1),
        ("side_channel_port", 65_536),
        ("handshake_s", 601.0),
    ],
)
def test_settings_that_no_engine_can_have_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        EngineSettings(**{name: value})
