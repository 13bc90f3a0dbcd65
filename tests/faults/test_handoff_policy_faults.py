"""Faults that policies of the handoff keep small (group D): bad pods, late clients, addresses."""

import asyncio
import json
from pathlib import Path

import pytest

from epp.protocol import TIMEOUT_MS
from tests.fakes.split_pool import COMPLETIONS, SplitPool, prompt, split_pool, text_of
from tests.fakes.upstreams import Conversation, RawUpstream
from tests.fakes.waiting import until

pytestmark = pytest.mark.usefixtures("each_relay")

DEADLINE = TIMEOUT_MS[0]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n{"


def ask(name: str, **more: object) -> dict[str, object]:
    return {"prompt": prompt(name), "max_tokens": 4, **more}


def timeouts(pool: SplitPool, number: int) -> list[int]:
    """What the legs to this station were told of the deadline, in milliseconds."""
    requests = pool.stations[number].sim.recorder.requests
    return [int(value) for one in requests for value in one.values(DEADLINE)]


async def test_D28_a_pod_that_fails_again_and_again_gets_no_more_prompts(tmp_path: Path) -> None:
    """Protected by `Breakers.failed`, told by `Handover._prefill_failed`. Red when neither is
    called."""
    async with split_pool(tmp_path, prefills=2, breaker_pause_s=600, kv_lease_s=60) as pool:
        first, second = pool.stations[:2]
        first.fault(status=500)
        for number in range(5):
            assert (await pool.post(ask(f"b{number}")))[0] == 200
        assert len(first.bodies) == 3
        assert len(second.bodies) == 5
        assert pool.decode.metric("prefill_breakers_open") == 1
        assert pool.decode.metric("prefill_breakers_opened") == 1
        refused = pool.decode.metric("prefill_targets_refused_total", reason="breaker-open")
        assert refused == 2
        await pool.decode.counted({("answered", "split"): 5})


async def test_D28_a_pod_that_is_well_again_is_found_by_one_leg(tmp_path: Path) -> None:
    """Protected by `Breakers.usable`, which lets a probe go. Red when none ever goes."""
    async with split_pool(tmp_path, breaker_failures=1, breaker_pause_s=0.05) as pool:
        pool.prefill.fault(status=503)
        assert (await pool.post(ask("down")))[0] == 200
        pool.prefill.fault()
        await asyncio.sleep(0.06)
        assert (await pool.post(ask("up")))[0] == 200
        await pool.decode.counted({("answered", "prefill-status"): 1, ("answered", "split"): 1})
        assert pool.decode.metric("prefill_breakers_open") == 0


async def test_D28_where_all_are_bad_it_is_computed_here_at_once(tmp_path: Path) -> None:
    """Protected by `Splitter._usable`. Red when a leg is sent to a pod that is left out."""
    async with split_pool(tmp_path, breaker_failures=1, breaker_pause_s=600) as pool:
        pool.prefill.fault(hang=True)
        pool.prefill.fault(status=502)
        for number in range(3):
            assert (await pool.post(ask(f"x{number}")))[0] == 200
        assert len(pool.prefill.bodies) == 1
        expected = {("answered", "prefill-status"): 1, ("whole", "breaker-open"): 2}
        await pool.decode.counted(expected)


async def test_D28_where_nothing_may_be_computed_here_a_bad_pod_is_still_asked(
    tmp_path: Path,
) -> None:
    """Protected by the policy's part in `Splitter._usable`. Red when it is not heeded."""
    settings = {"breaker_failures": 1, "breaker_pause_s": 600, "on_prefill_failure": "fail"}
    async with split_pool(tmp_path, **settings) as pool:
        pool.prefill.fault(status=502, status_count=1)
        assert (await pool.post(ask("one")))[0] == 502
        assert (await pool.post(ask("two")))[0] == 200
        await pool.decode.counted({("passed", "prefill"): 1, ("answered", "split"): 1})


@pytest.mark.parametrize("status", [400, 429])
async def test_D28_a_clients_own_fault_or_a_full_pod_breaks_nothing(
    status: int, tmp_path: Path
) -> None:
    """Protected by `Handover._is_its_own_fault`. Red when every status counts."""
    async with split_pool(tmp_path, breaker_failures=1) as pool:
        pool.prefill.fault(status=status)
        for number in range(2):
            await pool.post(ask(f"s{number}"))
        assert len(pool.prefill.bodies) == 2
        assert pool.decode.metric("prefill_breakers_opened") == 0


async def test_D09_a_prefill_answer_that_stops_in_the_middle_costs_its_idle_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protected by the limit that `PrefillLeg.begin` sets. Red when only the leg's whole limit ends
    it."""
    monkeypatch.setattr("sidecar.transfer.prefilling.COMMITTED_S", 0.2)

    async def stop(talk: Conversation) -> None:
        await talk.send(HEAD)
        await talk.reader.read(1)

    async with split_pool(tmp_path, upstreams={0: RawUpstream(stop)}) as pool:
        async with asyncio.timeout(20):
            assert (await pool.post(ask("half")))[0] == 200
        await pool.decode.counted({("answered", "prefill-lost"): 1})


async def test_D08_both_legs_hear_how_long_the_client_still_waits(tmp_path: Path) -> None:
    """Protected by `Deadline.told` in `job.call`. Red when legs get the client's own number."""
    async with split_pool(tmp_path) as pool:
        pool.prefill.fault(latency_s=0.1)
        assert (await pool.post(ask("told"), **{DEADLINE: "60000"}))[0] == 200
        (prefill,), (decode,) = timeouts(pool, 0), timeouts(pool, 1)
        assert 0 < decode <= prefill - 100 < 60_000


@pytest.mark.parametrize("slow", [0, 1], ids=["prefill", "decode"])
@pytest.mark.parametrize("stream", [False, True])
async def test_D08_a_gateway_that_gives_up_is_answered_in_time_and_nothing_stays_pinned(
    slow: int, stream: bool, tmp_path: Path
) -> None:
    """Protected by `Handover._give_up`, which takes the end of time for a client that left. Red
    when only the leg's own limits hold. Leaving the pool checks the pins."""
    async with split_pool(tmp_path) as pool:
        pool.stations[slow].fault(latency_s=1.5)
        status, got = await pool.post(ask("late", stream=stream), **{DEADLINE: "300"})
        assert (status, json.loads(got)["error"]["code"]) == (504, "deadline")
        await pool.decode.ended("client-gone")
        assert pool.decode.metric("handoff_deadline_total") == 1
        assert pool.decode.metric("prefill_breakers_opened") == 0


async def test_D08_an_answer_that_has_begun_is_cut_at_the_deadline_and_never_ended(
    tmp_path: Path,
) -> None:
    """Protected by `_speaking`: a second answer must not follow the first bytes of one. Red when
    a refusal is written then."""
    async with split_pool(tmp_path) as pool:
        pool.decode.fault(hang_after_chunks=2)
        with pytest.raises(Exception, match=r"(?i)payload|disconnected|closed|reset"):
            await pool.post(ask("cut", stream=True), **{DEADLINE: "1500"})
        await pool.settle()
        await pool.decode.ended("client-gone")
        pool.decode.fault()


async def test_D12_loopback_from_another_machine_is_not_used(tmp_path: Path) -> None:
    """Protected by the comparison with the leg's target in `PrefillLeg._read`. Red when such
    parameters are sent: the engine would pull from itself. The sidecars are reached at one address
    of this machine and at another, which stand for two machines."""
    async with split_pool(tmp_path, host="0.0.0.0") as pool:
        pool.means_harm = True  # the lease of what cannot be pulled must run out
        port = pool.prefill.sidecar.port
        entries = json.loads(pool.file.read_text())["endpoints"]
        entries[0]["address"] = "127.0.0.2"
        pool.file.write_text(json.dumps({"endpoints": entries}))
        guard = pool.decode.sidecar.guard
        await until(lambda: guard.is_member_host("127.0.0.2"))
        status, got = await pool.post(ask("home"), targets=f"127.0.0.2:{port}")
        assert (status, text_of(got)) == (200, text_of(await pool.alone(ask("home"))))
        assert len(pool.prefill.bodies) == 1
        assert all(b"remote_host" not in body for body in pool.decode.bodies)
        await pool.decode.counted({("answered", "misaddressed"): 1})
        assert pool.decode.metric("handoff_stranded_total", reason="misaddressed") == 1
        assert pool.decode.metric("handoff_misaddressed_total") == 1
        assert (await pool.post(ask("here"), COMPLETIONS))[0] == 200
