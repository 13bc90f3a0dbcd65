"""Two simulated engines that hand over KV, over real HTTP: good handoffs and every misuse."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from epp.errors import LocalError
from epp.sim.server import EngineServer
from epp.sim.tokenizer import encode
from tests.fakes.cache_model import CacheModel
from tests.fakes.engines import (
    EventTap,
    Pair,
    eventually,
    prefill_body,
    running_engine,
    running_pair,
)
from tests.timing import scaled

RECORDED = Path(__file__).parent.parent / "data" / "vllm-0.32.0"
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
INTERNAL = {
    "message": "Internal server error",
    "type": "InternalServerError",
    "param": None,
    "code": 500,
}
DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."

Json = dict[str, Any]


class Client:
    """Sends legs to a pair of engines."""

    def __init__(self, http: aiohttp.ClientSession, pair: Pair) -> None:
        self.http = http
        self.pair = pair

    async def post(
        self, engine: EngineServer, path: str, body: Json, **headers: str
    ) -> tuple[int, str]:
        async with self.http.post(engine.url + path, json=body, headers=headers) as response:
            return response.status, await response.text()

    async def prefill(self, body: Json, path: str = COMPLETIONS, **headers: str) -> Json:
        status, text = await self.post(self.pair.prefill, path, prefill_body(body), **headers)
        assert status == 200, text
        params: Json = json.loads(text)["kv_transfer_params"]
        return params

    async def decode(self, body: Json, params: object, path: str = COMPLETIONS) -> tuple[int, str]:
        return await self.post(self.pair.decode, path, {**body, "kv_transfer_params": params})

    async def alone(self, body: Json, path: str = COMPLETIONS) -> str:
        """The answer of an engine that hands over nothing."""
        async with running_engine() as engine:
            status, text = await self.post(engine, path, body)
            assert status == 200, text
            return text


@asynccontextmanager
async def clients(**settings: Any) -> AsyncIterator[Client]:
    async with running_pair(**settings) as pair, aiohttp.ClientSession() as http:
        yield Client(http, pair)


def ask(name: str, words: int = 60, **more: Any) -> Json:
    prompt = " ".join(f"{name}{number}" for number in range(words))
    return {"prompt": prompt, "max_tokens": 8, **more}


def text_of(answer: str) -> str:
    """The text of a whole answer or of a stream."""
    if not answer.startswith("data:"):
        choice = json.loads(answer)["choices"][0]
        return choice["text"] if "text" in choice else choice["message"]["content"]
    pieces = [json.loads(line[6:]) for line in answer.split("\n\n")[:-2]]
    choices = [piece["choices"][0] for piece in pieces if piece["choices"]]
    return "".join(c["text"] if "text" in c else c["delta"]["content"] for c in choices)


def pins(client: Client) -> Any:
    return client.pair.prefill.driver.engine.pins


async def numbers(client: Client, engine: EngineServer) -> dict[str, float]:
    async with client.http.get(engine.url + "/metrics") as response:
        page = await response.text()
    families = text_string_to_metric_families(page)
    return {
        "".join([s.name, *(f"/{v}" for k, v in s.labels.items() if k in {"source", "reason"})]): (
            s.value
        )
        for family in families
        for s in family.samples
    }


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


async def test_an_advertised_host_goes_into_the_parameters() -> None:
    async with clients(prefill={"advertise_host": "0.0.0.0"}) as client:
        assert (await client.prefill(ask("a")))["remote_host"] == "0.0.0.0"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port
