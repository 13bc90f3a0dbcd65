"""Two simulated engines that hand over KV, over real HTTP, as they should."""

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest

from epp.errors import LocalError
from epp.sim.tokenizer import encode
from tests.fakes.cache_model import CacheModel
from tests.fakes.engines import EventTap, Pair, eventually, prefill_body, running_engine
from tests.fakes.handoff_client import (
    CHAT,
    COMPLETIONS,
    Client,
    ask,
    clients,
    numbers,
    pins,
    text_of,
)
from tests.timing import scaled

RECORDED = Path(__file__).parent.parent / "data" / "vllm-0.32.0"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_a_handoff_answers_as_one_engine_does(path: str, stream: bool) -> None:
    async with clients() as client:
        for words in (1, 15, 16, 17, 64, 200):
            body = ask(f"w{words}x", words, stream=stream)
            if path == CHAT:
                content = body.pop("prompt")
                body = {"messages": [{"role": "user", "content": content}], **body}
            params = await client.prefill(body, path)
            assert len(pins(client)) == 1
            status, text = await client.decode(body, params, path)
            assert status == 200
            assert text_of(text) == text_of(await client.alone(body, path))
            assert len(pins(client)) == 0
        assert client.pair.prefill.driver.engine.pool.used == 0
        assert client.pair.decode.driver.engine.counters.computed_prompt_tokens == 0
        assert client.pair.lease_ends() == 0


async def test_the_parameters_are_those_of_a_real_engine() -> None:
    real = json.loads((RECORDED / "handoff_0.32.0.json").read_text())
    async with clients() as client:
        params = await client.prefill(ask("a"), **{"X-Request-Id": "client-7"})
        for recorded in real:
            assert list(params) == list(recorded["prefill_response"]["kv_transfer_params"])
        assert params["do_remote_prefill"] is True
        assert params["do_remote_decode"] is False
        tokens = len(encode(ask("a")["prompt"]))
        assert params["remote_num_tokens"] == tokens
        assert [len(group) for group in params["remote_block_ids"]] == [-(-tokens // 16)]
        assert params["remote_request_id"].startswith("cmpl-client-7-0-")
        assert len(params["remote_request_id"]) == len("cmpl-client-7-0-") + 8
        assert params["remote_host"] == "127.0.0.1"
        assert params["remote_port"] == client.pair.prefill.handover.port
        again = await client.prefill(ask("a"))
        assert again["remote_prefill_cached_tokens"] == (tokens - 1) // 16 * 16
        assert again["remote_request_id"] != params["remote_request_id"]


async def test_a_decode_answer_carries_no_parameters_and_counts_its_own_cache() -> None:
    async with clients() as client:
        body = ask("a")
        await client.prefill(body)
        params = await client.prefill(body)
        _, text = await client.decode(body, {**params, "unknown": {"to": ["us"]}})
        answer = json.loads(text)
        assert answer["kv_transfer_params"] is None
        assert params["remote_prefill_cached_tokens"] > 0
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        # What was pulled is in the cache from then on.
        _, text = await client.decode(body, await client.prefill(body))
        cached = json.loads(text)["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached == (len(encode(body["prompt"])) - 1) // 16 * 16


async def test_a_decode_engine_may_report_the_cache_of_the_prefill_engine() -> None:
    async with clients(decode={"usage_counts_remote_cache": True}) as client:
        body = ask("a")
        await client.prefill(body)
        params = await client.prefill(body)
        _, text = await client.decode(body, params)
        usage = json.loads(text)["usage"]["prompt_tokens_details"]
        assert usage["cached_tokens"] == params["remote_prefill_cached_tokens"] > 0


async def test_a_pull_is_seen_in_the_metrics_and_in_the_events() -> None:
    async with clients() as client:
        endpoint = client.pair.decode.kv_events_endpoint
        assert endpoint is not None
        async with EventTap(endpoint) as tap:
            body = ask("a", 100)
            params = await client.prefill(body)
            blocks = len(params["remote_block_ids"][0])
            before = await numbers(client, client.pair.prefill)
            assert before["sim:kv_pinned_blocks"] == blocks
            assert before["vllm:kv_cache_usage_perc"] == blocks / 2048
            await client.decode(body, params)
            model = CacheModel()
            for _, message in await tap.waiting():
                model.apply(message.events)
        prompt = encode(body["prompt"])
        assert model.cached_tokens(prompt, 16) == len(prompt) // 16 * 16
        assert model.contents() == client.pair.decode.driver.engine.pool.contents()
        decode = await numbers(client, client.pair.decode)
        assert decode["vllm:nixl_xfer_time_seconds_count"] == 1
        assert decode["vllm:nixl_bytes_transferred_sum"] == blocks * 16 * 1024
        assert decode["vllm:nixl_num_failed_transfers_total"] == 0
        assert decode["vllm:prompt_tokens_by_source_total/external_kv_transfer"] == len(prompt)
        assert decode["vllm:prompt_tokens_by_source_total/local_compute"] == 0
        assert decode["sim:prefill_local_tokens_total"] == 0
        prefill = await numbers(client, client.pair.prefill)
        assert prefill["sim:kv_pinned_blocks"] == 0
        assert prefill["sim:kv_pull_total"] == prefill["sim:kv_pins_issued_total"] == 1
        assert prefill["sim:prefill_local_tokens_total"] == len(prompt)


async def test_a_request_that_waits_for_its_pull_is_deferred_and_keeps_the_lease_alive() -> None:
    async with clients(lease_s=scaled(0.6), decode={"pull_setup_s": scaled(1.5)}) as client:
        body = ask("a")
        params = await client.prefill(body)
        async with asyncio.TaskGroup() as tg:
            answer = tg.create_task(client.decode(body, params))
            engine = client.pair.decode.driver.engine
            await eventually(lambda: engine.waiting == 1)
            page = await numbers(client, client.pair.decode)
            assert page["vllm:num_requests_waiting_by_reason/deferred"] == 1
            assert page["vllm:num_requests_running"] == 0
        assert text_of(answer.result()[1]) == text_of(await client.alone(body))
        assert pins(client).counters.heartbeats > 0
        assert client.pair.lease_ends() == 0


async def test_blocks_that_nobody_pulls_are_freed_when_the_lease_ends() -> None:
    async with clients(lease_s=0.2) as client:
        await client.prefill(ask("a"))
        assert client.pair.prefill.driver.engine.pool.used > 0
        await eventually(lambda: client.pair.prefill.driver.engine.pool.used == 0)
        assert client.pair.lease_ends() == 1
        page = await numbers(client, client.pair.prefill)
        assert page["sim:kv_lease_expired_total"] == 1
        assert page["vllm:nixl_num_kv_expired_reqs_total"] == 1


async def test_a_prefill_that_waits_for_blocks_starts_as_soon_as_others_are_pulled() -> None:
    async with clients(prefill={"num_blocks": 6, "lease_s": 600}) as client:
        params = await client.prefill(ask("a"))
        engine = client.pair.prefill.driver.engine
        async with asyncio.TaskGroup() as tg:
            second = tg.create_task(client.prefill(ask("b")))
            await eventually(lambda: engine.waiting == 1)
            await client.decode(ask("a"), params)
            await eventually(second.done)
        assert client.pair.lease_ends() == 0


async def test_abandoned_prefills_stall_the_prefill_engine_until_their_leases_end() -> None:
    async with clients(prefill={"num_blocks": 6, "lease_s": scaled(0.5)}) as client:
        await client.prefill(ask("a"))
        engine = client.pair.prefill.driver.engine
        assert engine.kv_usage > 0.5
        async with asyncio.TaskGroup() as tg:
            second = tg.create_task(client.prefill(ask("b")))
            await eventually(lambda: engine.waiting == 1)
            assert not second.done()
        assert client.pair.lease_ends() == 1


async def test_roles_are_not_enforced() -> None:
    async with clients() as client:
        turned = Client(client.http, Pair(client.pair.decode, client.pair.prefill))
        status, text = await turned.decode(ask("a"), await turned.prefill(ask("a")))
        assert (status, text_of(text)) == (200, text_of(await client.alone(ask("a"))))


async def test_an_engine_without_a_role_ignores_the_parameters() -> None:
    async with running_engine() as engine, aiohttp.ClientSession(engine.url) as http:
        for params in ({"do_remote_prefill": True}, {"do_remote_decode": True}, {"x": 1}):
            body = {**ask("a"), "kv_transfer_params": params}
            async with http.post(COMPLETIONS, json=body) as response:
                assert response.status == 200
                assert (await response.json())["kv_transfer_params"] is None
        assert engine.driver.engine.pool.used == 0
        async with http.get("/metrics") as response:
            assert "nixl" not in await response.text()
        assert engine.state()["transfer"] is None


async def test_parameters_that_are_no_object_are_refused() -> None:
    async with clients() as client:
        for body in ({"kv_transfer_params": [1]}, {"vllm_xargs": {"kv_transfer_params": {}}}):
            status, _ = await client.post(client.pair.decode, COMPLETIONS, {**ask("a"), **body})
            assert status == 400


async def test_a_prefill_may_be_told_to_end_at_its_first_token() -> None:
    async with clients() as client:
        async with client.http.post(
            client.pair.prefill.url + "/admin/faults", json={"prefill_offers_nothing": True}
        ):
            pass
        _, text = await client.post(client.pair.prefill, COMPLETIONS, prefill_body(ask("a")))
        answer = json.loads(text)
        assert answer["kv_transfer_params"] is None
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert len(pins(client)) == 0


async def test_the_state_shows_pins_and_pulls() -> None:
    async with clients() as client:
        params = await client.prefill(ask("a"))
        async with client.http.get(client.pair.prefill.url + "/admin/state") as response:
            state = (await response.json())["transfer"]
        assert state["engine_id"] == params["remote_engine_id"]
        assert state["port"] == params["remote_port"]
        assert state["pinned_requests"] == state["pins"]["issued"] == 1
        assert state["pinned_blocks"] == len(params["remote_block_ids"][0])
        await client.decode(ask("a"), params)
        async with client.http.get(client.pair.decode.url + "/admin/state") as response:
            state = (await response.json())["transfer"]
        assert state["pulls"]["done"] == 1
        assert state["local_prompt_tokens"] == 0


async def test_the_last_requests_are_kept_byte_for_byte() -> None:
    async with running_engine() as engine, aiohttp.ClientSession(engine.url) as http:
        raw = b'{ "prompt":"a",\t"seed": 123456789012345678901234567890, "max_tokens":1}'
        headers = [("X-Twice", "1"), ("X-Twice", "2"), ("Content-Type", "application/json")]
        for body in (raw, b"\xff"):
            async with http.post(COMPLETIONS + "?q=%20", data=body, headers=headers):
                pass
        async with http.get("/admin/requests") as response:
            first, second = await response.json()
        assert first["body"].encode() == raw
        assert second["body"] is None
        assert (first["number"], first["method"]) == (1, "POST")
        assert first["target"] == COMPLETIONS + "?q=%20"
        twice = [value for name, value in first["headers"] if name == "X-Twice"]
        assert twice == ["1", "2"]
        async with http.get("/admin/requests?after=1") as response:
            assert [one["number"] for one in await response.json()] == [2]
        async with http.get("/admin/requests?after=x") as response:
            assert response.status == 400
        assert engine.recorder.requests[0].values("X-TWICE") == ["1", "2"]


async def test_a_side_channel_port_in_use_is_said_so() -> None:
    async with running_engine(kv_role="both") as engine:
        assert engine.handover is not None
        with pytest.raises(LocalError, match="choose another side channel port"):
            async with running_engine(kv_role="both", side_channel_port=engine.handover.port):
                raise AssertionError


async def test_an_advertised_host_goes_into_the_parameters() -> None:
    async with clients(prefill={"advertise_host": "0.0.0.0"}) as client:
        assert (await client.prefill(ask("a")))["remote_host"] == "0.0.0.0"
