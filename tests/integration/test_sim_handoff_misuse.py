"""Every way to get a handoff between simulated engines wrong, with what real engines do then."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from epp.sim.tokenizer import encode
from tests.fakes.engines import eventually, prefill_body, running_engine
from tests.fakes.handoff_client import (
    CHAT,
    COMPLETIONS,
    Json,
    ask,
    clients,
    free_port,
    numbers,
    pins,
    text_of,
)
from tests.timing import scaled

INTERNAL = {
    "message": "Internal server error",
    "type": "InternalServerError",
    "param": None,
    "code": 500,
}
DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


async def test_a_streamed_prefill_answers_without_parameters_and_pins_all_the_same() -> None:
    async with clients() as client:
        body = {**prefill_body(ask("a")), "stream": True}
        status, text = await client.post(client.pair.prefill, COMPLETIONS, body)
        assert status == 200
        assert text.endswith("data: [DONE]\n\n")
        assert "kv_transfer_params" not in text
        assert len(pins(client)) == 1


@pytest.mark.parametrize("several", [{"prompt": ["one two", "three four"]}, {"n": 2}])
async def test_of_several_answers_one_set_of_parameters_comes_and_all_are_pinned(
    several: Json,
) -> None:
    async with clients(lease_s=scaled(0.6)) as client:
        body = {**ask("a"), **several}
        params = await client.prefill(body)
        assert len(pins(client)) == 2
        assert isinstance(params, dict)
        if "n" in several:
            await client.decode(ask("a"), params)
        await eventually(lambda: len(pins(client)) == 0)
        assert client.pair.lease_ends() == (1 if "n" in several else 2)


async def test_parameters_of_another_prompt_give_wrong_tokens_and_poison_the_cache() -> None:
    async with clients() as client:
        right, wrong = ask("a"), ask("b")
        truth = text_of(await client.alone(right))
        status, text = await client.decode(right, await client.prefill(wrong))
        assert status == 200
        assert text_of(text) != truth
        # A plain request finds the wrong KV under the right hash.
        status, text = await client.post(client.pair.decode, COMPLETIONS, right)
        assert status == 200
        assert json.loads(text)["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        assert text_of(text) != truth
        client.pair.decode.driver.engine.evict()
        _, text = await client.post(client.pair.decode, COMPLETIONS, right)
        assert text_of(text) == truth


async def test_a_pull_after_the_lease_is_right_by_luck_and_wrong_once_blocks_are_reused() -> None:
    async with clients(lease_s=0.1, prefill={"num_blocks": 24}) as client:
        body, late = ask("a"), ask("b")
        params = await client.prefill(body)
        await eventually(lambda: client.pair.lease_ends() == 1)
        status, text = await client.decode(body, params)
        assert (status, text_of(text)) == (200, text_of(await client.alone(body)))
        params = await client.prefill(late)
        await eventually(lambda: client.pair.lease_ends() == 2)
        await client.post(client.pair.prefill, COMPLETIONS, ask("c", 80))
        status, text = await client.decode(late, params)
        assert status == 200
        assert text_of(text) != text_of(await client.alone(late))
        assert pins(client).counters.late == 2
        page = await numbers(client, client.pair.prefill)
        assert page["sim:kv_pull_late_total"] == 2
        assert page["vllm:nixl_num_notifications_after_expiry_total"] == 2


async def test_parameters_used_twice_are_counted_and_wrong_once_blocks_are_reused() -> None:
    async with clients(prefill={"num_blocks": 24}) as client:
        body = ask("a")
        params = await client.prefill(body)
        await client.decode(body, params)
        client.pair.decode.driver.engine.evict()
        await client.post(client.pair.prefill, COMPLETIONS, ask("c", 80))
        status, text = await client.decode(body, params)
        assert status == 200
        assert text_of(text) != text_of(await client.alone(body))
        assert (await numbers(client, client.pair.prefill))["sim:kv_params_reused_total"] == 1


async def test_a_longer_prefill_answer_is_seen_in_the_parameters() -> None:
    async with clients() as client:
        body = ask("a")
        leg = {**prefill_body(body), "max_tokens": 5}
        _, text = await client.post(client.pair.prefill, COMPLETIONS, leg)
        params = json.loads(text)["kv_transfer_params"]
        assert params["remote_num_tokens"] == len(encode(body["prompt"])) + 4
        status, text = await client.decode(body, params)
        assert (status, text_of(text)) == (200, text_of(await client.alone(body)))


async def test_a_prefill_that_fills_a_block_too_many_gives_wrong_tokens() -> None:
    async with clients() as client:
        body = ask("a", 64)
        leg = {**prefill_body(body), "max_tokens": 5}
        _, text = await client.post(client.pair.prefill, COMPLETIONS, leg)
        status, text = await client.decode(body, json.loads(text)["kv_transfer_params"])
        assert status == 200
        assert text_of(text) != text_of(await client.alone(body))


@pytest.mark.parametrize("policy", ["fail", "recompute"])
@pytest.mark.parametrize("fault", ["restarted", "refused", "told-to-fail"])
async def test_a_pull_that_fails_is_an_error_or_computed_again(policy: str, fault: str) -> None:
    async with clients(decode={"kv_load_failure_policy": policy}) as client:
        body = ask("a")
        params = await client.prefill(body)
        if fault == "restarted":
            client.pair.prefill.restart()
        elif fault == "refused":
            params = {**params, "remote_port": free_port()}
        else:
            async with client.http.post(
                client.pair.decode.url + "/admin/faults", json={"fail_pulls": 1}
            ):
                pass
        started = asyncio.get_running_loop().time()
        status, text = await client.decode(body, params)
        if fault == "refused":
            assert asyncio.get_running_loop().time() - started >= 0.1
        decode = await numbers(client, client.pair.decode)
        assert decode["vllm:nixl_num_failed_transfers_total"] == 1
        if policy == "fail":
            assert (status, json.loads(text)) == (500, {"error": INTERNAL})
            assert decode["vllm:request_success_total"] >= 0
            assert client.pair.decode.driver.engine.pool.used == 0
        else:
            assert (status, text_of(text)) == (200, text_of(await client.alone(body)))
            assert decode["sim:prefill_local_tokens_total"] == len(encode(body["prompt"]))
        if fault == "restarted":
            assert (await numbers(client, client.pair.prefill))["sim:kv_pull_unknown_total"] == 1
            status, _ = await client.decode(ask("b"), await client.prefill(ask("b")))
            assert status == 200


async def test_an_engine_that_was_reached_before_and_is_gone_fails_at_once() -> None:
    async with clients(decode={"handshake_s": 60}) as client:
        await client.decode(ask("a"), await client.prefill(ask("a")))
        params = await client.prefill(ask("b"))
        params["remote_port"] = free_port()
        async with asyncio.timeout(scaled(5)):
            status, _ = await client.decode(ask("b"), params)
        assert status == 500


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_a_stream_whose_pull_fails_ends_with_an_error_event(path: str) -> None:
    async with clients() as client:
        body: Json = {"stream": True, "max_tokens": 4}
        if path == CHAT:
            body["messages"] = [{"role": "user", "content": "hello there"}]
        else:
            body["prompt"] = "hello there"
        params = await client.prefill(body, path)
        client.pair.prefill.restart()
        status, text = await client.decode(body, params, path)
        assert status == 200
        *events, error, done, end = text.split("\n\n")
        assert (done, end) == ("data: [DONE]", "")
        assert json.loads(error.removeprefix("data: ")) == {"error": INTERNAL}
        roles = [json.loads(event[6:])["choices"][0]["delta"] for event in events]
        assert roles == ([{"role": "assistant", "content": ""}] if path == CHAT else [])


@pytest.mark.parametrize(
    "fatal",
    [
        {"kv_transfer_params": {"do_remote_prefill": True}},
        {"kv_transfer_params": {"do_remote_prefill": True, "remote_block_ids": None}},
        {"kv_transfer_params": {"do_remote_prefill": True, "remote_block_ids": "1"}},
        {"vllm_xargs": {"kv_transfer_params": "x"}},
    ],
)
async def test_a_pull_without_blocks_kills_the_engine(fatal: Json) -> None:
    async with clients(decode={"decode_step_s": scaled(0.1)}) as client:
        engine = client.pair.decode
        async with asyncio.TaskGroup() as tg:
            other = tg.create_task(client.post(engine, COMPLETIONS, ask("b", max_tokens=1000)))
            await eventually(lambda: engine.driver.engine.running == 1)
            status, text = await client.post(engine, COMPLETIONS, {**ask("a"), **fatal})
            assert (status, json.loads(text)["error"]["message"]) == (500, DEAD)
        assert other.result()[0] == 500
        status, text = await client.post(engine, COMPLETIONS, ask("a"))
        assert (status, json.loads(text)["error"]["message"]) == (500, DEAD)
        async with client.http.get(engine.url + "/health") as response:
            assert response.status == 503
        engine.restart()
        async with client.http.get(engine.url + "/health") as response:
            assert response.status == 200
        assert (await client.post(engine, COMPLETIONS, ask("a")))[0] == 200


async def test_a_process_ends_with_its_engine() -> None:
    crashes: list[int] = []
    async with running_engine(crash=crashes.append, kv_role="both", exit_when_dead=True) as engine:
        async with aiohttp.ClientSession(engine.url) as http:
            body = {"prompt": "a", "kv_transfer_params": {"do_remote_prefill": True}}
            async with http.post(COMPLETIONS, json=body) as response:
                assert response.status == 500
        await eventually(lambda: crashes == [1])


async def test_fewer_blocks_than_the_prompt_needs_kill_the_engine() -> None:
    async with clients() as client:
        params = await client.prefill(ask("a", 5))
        status, _ = await client.decode(ask("b", 100), params)
        assert status == 500
        assert client.pair.decode.driver.engine.dead is not None


@pytest.mark.parametrize("blocks", [[], [[]]])
async def test_no_blocks_are_fine_when_all_but_the_last_one_is_cached(blocks: Any) -> None:
    async with clients() as client:
        body = ask("a")
        _, truth = await client.post(client.pair.decode, COMPLETIONS, body)
        params = await client.prefill(body)
        status, text = await client.decode(body, {**params, "remote_block_ids": blocks})
        assert (status, text_of(text)) == (200, text_of(truth))
        await eventually(lambda: len(pins(client)) == 0)
        assert pins(client).counters.returned == 1
        assert client.pair.decode.driver.engine.counters.pulls == 0


@pytest.mark.parametrize("missing", ["remote_request_id", "remote_engine_id", "remote_port"])
async def test_a_pull_from_nowhere_hangs_and_kills_the_engine_when_its_client_leaves(
    missing: str,
) -> None:
    async with clients() as client:
        params = await client.prefill(ask("a"))
        del params[missing]
        engine = client.pair.decode.driver.engine
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await client.decode(ask("a"), params)
        await eventually(lambda: engine.dead is not None)
        status, _ = await client.post(client.pair.decode, COMPLETIONS, ask("b"))
        assert status == 500


async def test_a_client_that_leaves_the_decode_engine_frees_the_prefill_engine() -> None:
    async with clients(decode={"max_num_seqs": 1, "decode_step_s": scaled(0.05)}) as client:
        decode = client.pair.decode.driver.engine
        async with asyncio.TaskGroup() as tg:
            busy = tg.create_task(
                client.post(client.pair.decode, COMPLETIONS, ask("z", max_tokens=5000))
            )
            await eventually(lambda: decode.running == 1)
            # One leaves while it waits for a place, before its pull has begun.
            waits = tg.create_task(client.decode(ask("a"), await client.prefill(ask("a"))))
            await eventually(lambda: decode.before_pull == 1)
            waits.cancel()
            await eventually(lambda: pins(client).counters.returned == 1)
            busy.cancel()
        assert len(pins(client)) == 0
        assert client.pair.lease_ends() == 0


async def test_a_client_that_leaves_during_its_pull_frees_both_engines() -> None:
    async with clients(decode={"pull_setup_s": scaled(0.3)}) as client:
        decode = client.pair.decode.driver.engine
        async with asyncio.TaskGroup() as tg:
            params = await client.prefill(ask("a"))
            pulls = tg.create_task(client.decode(ask("a"), params))
            await eventually(lambda: len(decode.incoming.loading) == 1)
            pulls.cancel()
            await eventually(lambda: decode.waiting == 0)
        # The hardware still writes into the blocks.
        assert decode.pool.used > 0
        await eventually(lambda: decode.pool.used == 0)
        assert pins(client).counters.pulled == 1
        assert len(pins(client)) == 0


async def test_a_refused_decode_request_hands_its_blocks_back() -> None:
    async with clients(decode={"max_model_len": 64}) as client:
        body = ask("a", 100)
        status, _ = await client.decode(body, await client.prefill(body))
        assert status == 400
        await eventually(lambda: pins(client).counters.returned == 1)
        assert len(pins(client)) == 0


async def test_a_prefill_that_is_aborted_keeps_nothing() -> None:
    async with clients(prefill={"decode_step_s": scaled(0.5)}) as client:
        prefill = client.pair.prefill.driver.engine
        async with asyncio.TaskGroup() as tg:
            leg = tg.create_task(client.prefill(ask("a")))
            await eventually(lambda: prefill.running == 1)
            leg.cancel()
            await eventually(lambda: prefill.pool.used == 0)
        assert pins(client).counters.issued == 0


async def test_a_side_channel_refuses_what_it_does_not_understand() -> None:
    async with clients() as client:
        handover = client.pair.prefill.handover
        assert handover is not None
        url = f"http://127.0.0.1:{handover.port}/read"
        name = client.pair.prefill.driver.engine_id
        bodies = {
            b"{": 400,
            b"{}": 400,
            json.dumps({"engine_id": name, "request_ids": []}).encode(): 400,
            json.dumps({"engine_id": name, "request_ids": ["x"], "blocks": [-1]}).encode(): 416,
            json.dumps({"engine_id": name, "request_ids": ["x"], "blocks": [2048]}).encode(): 416,
            json.dumps({"engine_id": "other", "request_ids": ["x"]}).encode(): 404,
        }
        for body, status in bodies.items():
            async with client.http.post(url, data=body) as response:
                assert response.status == status, body


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("", 1),
        ("a b", 1),
        ("127.0.0.1", -1),
        ("127.0.0.1", 99_999),
        ("127.0.0.1", 10**30),
        ("x@127.0.0.1/y?", 1),
        ("[", 1),
    ],
)
async def test_an_address_that_is_none_fails_the_pull_and_nothing_else(
    host: str, port: int
) -> None:
    async with clients() as client:
        params = await client.prefill(ask("a"))
        bad = {**params, "remote_host": host, "remote_port": port}
        status, _ = await client.decode(ask("a"), bad)
        assert status == 500
        status, _ = await client.decode(ask("a"), params)
        assert status == 200
