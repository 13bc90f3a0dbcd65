"""The handoff over real sockets: two sidecars, two engines that hand over KV."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from epp.protocol import PREFILLER, TIMEOUT_LEFT_MS
from sidecar.transfer.legs import Leg, LegKeys
from sidecar.transfer.targets import Target
from tests.fakes.handoffs import rows
from tests.fakes.split_pool import CHAT, COMPLETIONS, KEY, prompt, split_pool, text_of
from tests.fakes.upstreams import Conversation, RawUpstream, answer
from tests.fakes.waiting import until

pytestmark = pytest.mark.usefixtures("each_relay")

LEG = (
    b'{"prompt":"x","max_tokens":1,"kv_transfer_params":'
    b'{"do_remote_decode":true,"do_remote_prefill":false}}'
)
PREFILLED = (
    b'{"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,'
    b'"remote_block_ids":[[1]],"remote_engine_id":"e","remote_request_id":"r",'
    b'"remote_host":"10.0.0.1","remote_port":5600}}'
)


def ask(path: str, words: int, stream: bool) -> dict[str, Any]:
    text = prompt(f"w{words}x", words)
    body: dict[str, Any] = {"max_tokens": 8, "stream": stream}
    if path == CHAT:
        return {"messages": [{"role": "user", "content": text}], **body}
    return {"prompt": text, **body}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_a_split_request_answers_as_one_engine_does(
    path: str, stream: bool, tmp_path: Path
) -> None:
    async with split_pool(tmp_path) as pool:
        for words in (1, 16, 17, 200):
            body = ask(path, words, stream)
            status, answer = await pool.post(body, path)
            assert status == 200
            assert text_of(answer) == text_of(await pool.alone(body, path))
            assert b"kv_transfer_params" not in answer
        decode, prefill = pool.decode, pool.prefill
        assert decode.sim.driver.engine.counters.computed_prompt_tokens == 0
        assert decode.sim.driver.engine.counters.pulls == 4
        assert prefill.pins.counters.pulled == 4
        await decode.counted({("answered", "split"): 4})
        assert prefill.metric("legs_served_total") == 4
        assert decode.metric("handoff_gap_seconds_count") == 4
        assert decode.metric("prefill_leg_seconds_count") == 4
        views = pool.log.views
        await until(lambda: any(len(view.done) == 4 for view in views.values()))
        reports = [view for view in views.values() if view.done or view.first]
        assert len(reports) == 1, "only the decode sidecar reports"
        assert [one.decision_id for one in reports[0].done] == ["d-1"] * 4
        assert len(reports[0].first) == 4


async def test_a_prefill_is_not_awaited_for_longer_than_the_gateway_waits(tmp_path: Path) -> None:
    async def hang(talk: Conversation) -> None:
        await talk.reader.read(1)

    async with split_pool(tmp_path, upstreams={0: RawUpstream(hang)}) as pool:
        body = ask(COMPLETIONS, 20, stream=False)
        status, got = await pool.post(body, **{TIMEOUT_LEFT_MS: "5000"})
        assert (status, text_of(got)) == (200, text_of(await pool.alone(body)))
        await pool.decode.counted({("answered", "prefill-timeout"): 1})


async def test_a_leg_port_serves_members_without_any_key(tmp_path: Path) -> None:
    """Each sidecar has a leg port of its own, which the endpoints file names."""
    async with split_pool(tmp_path, leg_key_file=None, leg_port=0) as pool:
        entries = json.loads(pool.file.read_text())["endpoints"]
        for entry, station in zip(entries, pool.stations, strict=True):
            entry["legPort"] = station.sidecar.leg_port
        pool.file.write_text(json.dumps({"endpoints": entries}))
        guard = pool.decode.sidecar.guard
        target = Target("127.0.0.1", pool.prefill.sidecar.port)
        await until(lambda: guard.leg_port(target))
        status, _ = await pool.post(ask(COMPLETIONS, 50, False))
        assert status == 200
        await pool.decode.counted({("answered", "split"): 1})
        assert pool.prefill.pins.counters.pulled == 1


async def test_a_leg_port_refuses_strangers(tmp_path: Path) -> None:
    """Nobody is a member here, so that even this machine is foreign."""
    async with split_pool(tmp_path, leg_key_file=None, leg_port=0) as pool:
        pool.file.write_text('{"endpoints": [{"name": "x", "address": "10.9.9.9", "port": 1}]}')
        await until(lambda: len(pool.prefill.sidecar.guard) == 1)
        url = f"http://127.0.0.1:{pool.prefill.sidecar.leg_port}{COMPLETIONS}"
        async with pool.session.post(url, data=LEG) as response:
            assert response.status == 421
        assert pool.prefill.bodies == []
        assert pool.prefill.metric("legs_refused_total", reason="leg-peer") == 1


async def test_a_leg_port_takes_prefill_legs_and_nothing_else(tmp_path: Path) -> None:
    async with split_pool(tmp_path, leg_key_file=None, leg_port=0) as pool:
        base = f"http://127.0.0.1:{pool.prefill.sidecar.leg_port}"
        for path, body in (
            ("/metrics", LEG),
            (COMPLETIONS, b'{"prompt":"x"}'),
            (COMPLETIONS, b'{"prompt":"x","kv_transfer_params":{"do_remote_prefill":true}}'),
            (COMPLETIONS, LEG[:-1] + b',"vllm_xargs":{"kv_transfer_params":{}}}'),
        ):
            async with pool.session.post(base + path, data=body) as response:
                assert response.status == 421
        assert pool.prefill.bodies == []


@pytest.mark.parametrize("station", [0, -1], ids=["prefill", "decode"])
async def test_no_client_makes_an_engine_pull(station: int, tmp_path: Path) -> None:
    """In every spelling, at either sidecar, split or not: what is pulled is what we asked for."""
    evil = '{"do_remote_prefill":true,"do_remote_decode":true}'
    async with split_pool(tmp_path) as pool:
        one = pool.stations[station]
        engine = one.sim.driver.engine
        for number, row in enumerate(rows("spellings.jsonl")):
            text = row["body"].replace('{"do_remote_prefill":true,"remote_block_ids":[[1]]}', evil)
            start = f'{{"prompt":"{prompt(str(number), 20)}","max_tokens":2,'
            for body in (text, start + text.lstrip("\ufeff{ ")):
                for kind, targets in (("application/json", pool.targets), ("text/plain", "")):
                    fields = {"content-type": kind, PREFILLER: targets}
                    async with pool.session.post(
                        one.url + COMPLETIONS, data=body.encode(), headers=fields
                    ) as response:
                        await response.read()
            assert engine.dead is None, row["name"]
        await pool.settle()
        offered = pool.prefill.sim.driver.engine_id
        for received in one.bodies:
            found = json.loads(received.decode("utf-8-sig"))
            params = found.pop("kv_transfer_params", None) if isinstance(found, dict) else None
            assert params is None or (station == -1 and params["remote_engine_id"] == offered)
            assert not named(found)
        assert engine.counters.failed_pulls == 0
        assert one.metric("params_stripped_total", direction="request") > 0
        if station == 0:
            assert (engine.counters.pulls, one.pins.counters.issued) == (0, 0)


def named(body: Any) -> bool:
    """Whether the parameters stand where vLLM reads them."""
    if not isinstance(body, dict):
        return False
    holders = [body, body.get("vllm_xargs"), body.get("sampling_params")]
    holders += [one.get("extra_args") for one in holders if isinstance(one, dict)]
    return any("kv_transfer_params" in one for one in holders if isinstance(one, dict))


async def test_a_client_that_claims_to_be_a_leg_is_refused(tmp_path: Path) -> None:
    async with split_pool(tmp_path) as pool:
        keys = LegKeys(KEY.encode())
        own = str(Target("127.0.0.1", pool.prefill.sidecar.port))
        good = Leg(method="POST", path=COMPLETIONS, request_id="leg-1", target=own)
        other = Leg(method="POST", path=CHAT, request_id="leg-1", target=own)
        now = time.time_ns() / 1e9
        claims = {
            "x": "leg-malformed",
            LegKeys(b"z" * 32).sign(good, now): "leg-forged",
            keys.sign(other, now): "leg-forged",
            keys.sign(good, now - 200): "leg-expired",
        }
        for claim, reason in claims.items():
            fields = {"x-epp-leg": claim, "x-request-id": "leg-1"}
            url = pool.prefill.url + COMPLETIONS
            async with pool.session.post(url, data=LEG, headers=fields) as response:
                assert response.status == 421
                assert (await response.json())["error"]["code"] == reason
        fields = {"x-epp-leg": keys.sign(good, now), "x-request-id": "leg-1"}
        body = b'{"prompt":"x","kv_transfer_params":{"do_remote_prefill":true}}'
        async with pool.session.post(
            pool.prefill.url + COMPLETIONS, data=body, headers=fields
        ) as response:
            assert (await response.json())["error"]["code"] == "params-pull"
        assert pool.prefill.bodies == []
        assert pool.prefill.metric("legs_refused_total") == 5
        assert pool.prefill.metric("legs_served_total") == 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"leg_key_file": None}, "legs-off"),
        ({"endpoints_file": None}, "members-unknown"),
    ],
)
async def test_without_proof_or_members_all_is_computed_here_by_its_reason(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    async with split_pool(tmp_path, **changes) as pool:
        assert (await pool.post(ask(COMPLETIONS, 50, False)))[0] == 200
        assert pool.prefill.bodies == []
        await pool.decode.counted({("whole", reason): 1})


async def test_a_pool_of_different_keys_computes_here_and_shows_nothing(tmp_path: Path) -> None:
    other = tmp_path / "other-key"
    other.write_text("o" * 32)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    async with split_pool(tmp_path) as pool:
        async with split_pool(
            elsewhere, prefills=0, leg_key_file=other, endpoints_file=pool.file
        ) as stranger:
            body = ask(COMPLETIONS, 50, False)
            await until(lambda: len(stranger.decode.sidecar.guard) == 2)
            status, _ = await stranger.post(body, targets=pool.prefill.address)
            assert status == 200
            await stranger.decode.counted({("answered", "prefill-status"): 1})
        assert pool.prefill.metric("legs_refused_total", reason="leg-forged") == 1


async def test_a_target_that_is_this_very_pod_is_passed_over(tmp_path: Path) -> None:
    async with split_pool(tmp_path) as pool:
        status, _ = await pool.post(ask(COMPLETIONS, 50, False), targets=pool.decode.address)
        assert (status, len(pool.decode.bodies)) == (200, 1)
        await pool.decode.counted({("whole", "target-self"): 1})
        assert pool.decode.metric("prefill_targets_refused_total", reason="target-self") == 1


async def test_parameters_that_came_too_late_are_not_used(tmp_path: Path) -> None:
    """The answer's end comes when little of the lease is left: one more prefill, then alone."""

    async def script(talk: Conversation) -> None:
        await talk.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(PREFILLED))
        await asyncio.sleep(0.3)
        await talk.send(PREFILLED)

    upstreams = {0: RawUpstream(script)}
    async with split_pool(
        tmp_path, upstreams=upstreams, kv_lease_s=1.0, kv_lease_margin_s=0.9
    ) as pool:
        assert (await pool.post(ask(COMPLETIONS, 50, False)))[0] == 200
        assert len(pool.prefill.bodies) == 2
        assert b"kv_transfer_params" not in pool.decode.bodies[0]
        await pool.decode.counted({("answered", "lease-over"): 1})
        assert pool.decode.metric("handoff_expired_total") == 2


async def test_a_failure_of_our_own_falls_back_to_the_local_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> object:
        raise RuntimeError("a bug")

    monkeypatch.setattr("epp.seals._keyed", broken)  # the prefill leg's key
    async with split_pool(tmp_path) as pool:
        assert (await pool.post(ask(COMPLETIONS, 50, False)))[0] == 200
        await pool.decode.counted({("whole", "failed"): 1})


async def test_a_sidecar_that_ends_does_not_wait_for_clients_that_left(tmp_path: Path) -> None:
    async with split_pool(tmp_path, grace_s=0.1) as pool:
        pool.means_harm = True
        pool.decode.fault(hang=True)
        await pool.gone_once(ask(COMPLETIONS, 50, False), lambda: pool.decode.bodies)
        await asyncio.sleep(0.1)
        assert pool.decode.sidecar.relay.in_flight == 1, "it is still to be pulled"
        async with asyncio.timeout(3):
            await pool.decode.sidecar.relay.close()
        assert pool.decode.sidecar.relay.in_flight == 0


async def test_json_beyond_the_held_size_goes_out_without_its_length(tmp_path: Path) -> None:
    body = b'{"a":"' + b"x" * (2 << 20) + b'","kv_transfer_params":null}'
    upstream = RawUpstream(answer(body, fields=b"Content-Type: application/json\r\n"))
    async with split_pool(tmp_path, upstreams={-1: upstream}) as pool:
        status, got = await pool.post(ask(COMPLETIONS, 50, False), targets="")
    assert (status, got) == (200, body.replace(b',"kv_transfer_params":null', b""))
