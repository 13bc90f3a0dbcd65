"""Field faults of the handoff (group D) over real sockets: sidecars before simulated engines.

Each docstring names what protects; every one of these was seen red with that disabled. Leaving the
pool asserts that no lease ended, unless a test says `means_harm`.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import aiohttp.test_utils
import pytest

from epp.protocol import PREFILLER
from sidecar.http.asking import asked, with_usage
from sidecar.transfer.prefilling import CANCEL_S
from tests.fakes.handoffs import rows
from tests.fakes.split_pool import CHAT, COMPLETIONS, prompt, split_pool, text_of
from tests.fakes.upstreams import Conversation, RawUpstream, answer
from tests.fakes.waiting import until
from tests.timing import scaled

pytestmark = pytest.mark.usefixtures("each_relay")

NAME = b'"kv_transfer_params"'
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
JSON = b"Content-Type: application/json\r\n"


def ask(name: str = "a", **more: Any) -> dict[str, Any]:
    return {"prompt": prompt(name), "max_tokens": 8, **more}


def without_params(body: bytes) -> bytes:
    """A decode leg's body without its last member, which must be the parameters."""
    head, found, tail = body.rpartition(b"," + NAME + b":")
    assert found
    json.loads(tail[:-1])
    return head + b"}"


def params_of(body: bytes) -> Any:
    return json.loads(body).get("kv_transfer_params")


# --- D01-D05: what goes to which engine ----------------------------------------------------------


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize(
    "limits",
    [
        {"max_tokens": 7},
        {"max_completion_tokens": 7},
        {"max_tokens": 9, "max_completion_tokens": 7},
        {},
    ],
    ids=["max_tokens", "max_completion_tokens", "both", "neither"],
)
@pytest.mark.parametrize("least", [{}, {"min_tokens": 5}], ids=["", "min"])
async def test_D01_decode_gets_the_clients_bytes_and_prefill_one_token(
    path: str, limits: dict[str, int], least: dict[str, int], tmp_path: Path
) -> None:
    """Protected by `Body.edited` and by `DecodeLeg.send`, which sends the client's own text.

    Red when the decode leg is encoded anew, and when `min_tokens` stays on the prefill leg.
    """
    text = {"prompt": prompt("x")}
    if path == CHAT:
        text = {"messages": [{"role": "user", "content": prompt("x")}]}  # type: ignore[dict-item]
    odd = b'{ "seed" : 18446744073709551615, "unknown":{"b":1e2,"a":"\\u00e9"},'
    if path == COMPLETIONS and "max_tokens" not in limits:
        limits = {**limits, "max_tokens": 16}  # the engine's default for completions
    async with split_pool(tmp_path) as pool:
        for stream in ({}, {"stream": True, "stream_options": {"include_usage": True}}):
            sent = odd + json.dumps({**text, **limits, **least, **stream})[1:].encode()
            status, _ = await pool.post(sent, path)
            assert status == 200
            prefill, decode = pool.prefill.bodies[-1], pool.decode.bodies[-1]
            assert without_params(decode) == sent
            leg = json.loads(prefill)
            assert (leg["max_tokens"], leg["max_completion_tokens"]) == (1, 1)
            assert leg["stream"] is False
            assert not leg.keys() & {"min_tokens", "stream_options"}
        await pool.decode.counted({("answered", "split"): 2})


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"n": 4}, "n"),
        ({"best_of": 4}, "best-of"),
        ({"echo": True}, "echo"),
        ({"prompt_logprobs": 1}, "prompt-logprobs"),
        ({"use_beam_search": True}, "beam-search"),
        ({"prompt": ["a", "b"]}, "prompts"),
        ({"max_tokens": 1}, "one-token"),
    ],
)
async def test_D02_what_cannot_be_split_goes_to_the_decode_engine_alone(
    more: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    """Protected by `Splitter._handover`, which asks the plan. Red when it does not."""
    upstream = RawUpstream(answer(b"{}", fields=JSON))
    async with split_pool(tmp_path, upstreams={-1: upstream}) as pool:
        body = ask(**more)
        assert (await pool.post(body))[0] == 200
        assert pool.prefill.bodies == []
        assert [json.loads(one) for one in pool.decode.bodies] == [body]
        await pool.decode.counted({("whole", reason): 1})


@pytest.mark.parametrize("row", rows("d03_legs.jsonl"), ids=lambda row: row["name"])
async def test_D03_both_engines_see_the_same_prompt(row: dict[str, Any], tmp_path: Path) -> None:
    """Protected by `bodies.one_token` and `call`. Red when `tools` is dropped from one leg."""
    path = CHAT if "messages" in row["client"] else COMPLETIONS
    upstreams = {
        0: RawUpstream(answer(prefilled(), fields=JSON)),
        -1: RawUpstream(answer(b"{}", fields=JSON)),
    }
    async with split_pool(tmp_path, upstreams=upstreams) as pool:
        assert (await pool.post(row["client"].encode(), path))[0] == 200
        assert pool.prefill.bodies == [row["prefill"].encode()]
        assert [without_params(one) for one in pool.decode.bodies] == [row["client"].encode()]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/responses/resp_1",
        "/v1/embeddings",
        "/tokenize",
        "/v1/messages/count_tokens",
        "/v1/completions/x",
    ],
)
async def test_D04_other_endpoints_go_straight_to_the_local_engine(
    path: str, tmp_path: Path
) -> None:
    """Protected by `bodies.api_of`. Red when every path counts as completions."""
    upstream = RawUpstream(answer(b"{}", fields=JSON))
    async with split_pool(tmp_path, upstreams={-1: upstream}) as pool:
        assert (await pool.post(ask(), path))[0] == 200
        assert pool.prefill.bodies == []
        await pool.decode.counted({("whole", "api"): 1})


@pytest.mark.parametrize(
    ("path", "body", "capped"),
    [
        (
            "/v1/responses",
            {"input": "x", "max_output_tokens": 9, "stream": True},
            {"max_output_tokens": 1, "stream": False, "store": False},
        ),
        (
            "/v1/messages",
            {"messages": [], "max_tokens": 9, "stream": True},
            {"max_tokens": 1, "stream": False},
        ),
        (
            "/inference/v1/generate",
            {"token_ids": [1, 2], "sampling_params": {"max_tokens": 9, "min_tokens": 2}},
            {"sampling_params": {"max_tokens": 1}, "stream": False},
        ),
    ],
)
async def test_D04_each_api_is_limited_by_its_own_members(
    path: str, body: dict[str, Any], capped: dict[str, Any], tmp_path: Path
) -> None:
    """Protected by `bodies.SHAPES`. Red with the limits of chat for all of them: an engine would
    answer whole, or refuse."""
    upstreams = {
        0: RawUpstream(answer(prefilled(), fields=JSON)),
        -1: RawUpstream(answer(b"{}", fields=JSON)),
    }
    async with split_pool(tmp_path, upstreams=upstreams) as pool:
        assert (await pool.post(body, path))[0] == 200
        (leg,) = (json.loads(one) for one in posted(upstreams[0], path))
        (decode,) = posted(upstreams[-1], path)
        assert {name: leg[name] for name in leg if name != "kv_transfer_params"} == body | capped
        assert without_params(decode) == json.dumps(body).encode()
        await pool.decode.counted({("answered", "split"): 1})


def posted(upstream: RawUpstream, path: str) -> list[bytes]:
    start = f"POST {path} ".encode()
    return [one.body for one in upstream.received if one.line.startswith(start)]


async def test_D05_a_prefill_that_ended_by_itself_costs_no_wait(tmp_path: Path) -> None:
    """Protected by rule 6 of `Handoff`. Red when the decode leg waits for parameters."""
    async with split_pool(tmp_path) as pool:
        pool.prefill.fault(prefill_offers_nothing=True)
        async with asyncio.timeout(scaled(2)):
            status, got = await pool.post(ask())
        assert (status, text_of(got)) == (200, text_of(await pool.alone(ask())))
        assert params_of(pool.decode.bodies[-1]) is None
        await pool.decode.counted({("answered", "no-params"): 1})


# --- D06, D07, D09, D28: when a prefill fails -----------------------------------------------------


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
async def test_D06_the_clients_own_error_is_passed_once_as_the_engine_said_it(
    status: int, tmp_path: Path
) -> None:
    """Protected by `CLIENT_ERRORS` and `Handover._pass`. Red when errors lead to recompute."""
    error = b'{"error":{"message":"no","code":%d}}' % status
    upstream = RawUpstream(
        answer(error, status=b"%d Its Reason" % status, fields=JSON + b"X-Own: 1\r\n")
    )
    async with split_pool(tmp_path, prefills=2, upstreams={0: upstream}) as pool:
        assert await pool.post(ask()) == (status, error)
        assert len(pool.prefill.bodies) == 1
        assert pool.stations[1].bodies == pool.decode.bodies == []
        await pool.decode.counted({("passed", "prefill"): 1})


@pytest.mark.parametrize("policy", ["recompute", "fail"])
@pytest.mark.parametrize("status", [429, 500, 503])
async def test_D06_an_engines_own_error_tries_the_next_and_then_the_policy(
    status: int, policy: str, tmp_path: Path
) -> None:
    """Protected by `Handoff._prefill_failed`. Red when candidates or policy are ignored."""
    async with split_pool(tmp_path, prefills=2, on_prefill_failure=policy) as pool:
        for station in pool.stations[:2]:
            station.fault(status=status)
        got, _ = await pool.post(ask())
        assert [len(station.bodies) for station in pool.stations[:2]] == [1, 1]
        if policy == "fail":
            assert (got, pool.decode.bodies) == (status, [])
            await pool.decode.counted({("passed", "prefill"): 1})
        else:
            assert (got, len(pool.decode.bodies)) == (200, 1)
            await pool.decode.counted({("answered", "prefill-status"): 1})


async def reset(talk: Conversation) -> None:
    talk.reset()


async def hang(talk: Conversation) -> None:
    await talk.reader.read(1)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (answer(b"<html>oops</html>", fields=b"Content-Type: text/html\r\n"), "not-json"),
        (answer(b"{}", fields=JSON), "no-params"),
        (answer(b'{"kv_transfer_params":{}}', fields=JSON), "incomplete-params"),
        (answer(b"", status=b"302 Found", fields=b"Location: http://x/\r\n"), "prefill-garbled"),
        (reset, "prefill-status"),  # the prefill sidecar says 502
        (hang, "prefill-timeout"),
    ],
    ids=["html", "no-params", "incomplete", "redirect", "reset", "timeout"],
)
async def test_D06_whatever_else_a_prefill_does_is_counted_and_computed_here(
    script: Any, reason: str, tmp_path: Path
) -> None:
    """Protected by `PrefillLeg._read`, its time limit and rules 5 and 6.

    Red when a failure of the leg raises, and without `_arm` (the timeout).
    """
    upstream = RawUpstream(script)
    async with split_pool(tmp_path, upstreams={0: upstream}, prefill_timeout_s=0.3) as pool:
        status, got = await pool.post(ask())
        assert (status, text_of(got)) == (200, text_of(await pool.alone(ask())))
        assert params_of(pool.decode.bodies[-1]) is None
        await pool.decode.counted({("answered", reason): 1})
        assert len(pool.prefill.bodies) == 1


async def test_D07_without_a_ready_prefill_pod_it_is_computed_here_by_its_reason(
    tmp_path: Path,
) -> None:
    """Protected by `Splitter._found` and `Handoff`. Red when a reason is not counted."""
    async with split_pool(tmp_path) as pool:
        dead = aiohttp.test_utils.unused_port()
        pool.file.write_text(
            json.dumps(
                {
                    "endpoints": [
                        {"name": "e1", "address": "127.0.0.1", "port": pool.decode.sidecar.port},
                        {"name": "gone", "address": "127.0.0.1", "port": dead},
                    ]
                }
            )
        )
        guard = pool.decode.sidecar.guard
        await until(lambda: str(dead) in str(guard))
        for targets in ("", f"127.0.0.1:{dead}", pool.prefill.address):
            assert (await pool.post(ask(targets or "none"), targets=targets))[0] == 200
        assert pool.prefill.bodies == []
        await pool.decode.counted(
            {
                ("whole", "no-targets"): 1,
                ("answered", "prefill-unreachable"): 1,
                ("whole", "target-foreign"): 1,
            }
        )


async def test_D09_a_slow_success_is_never_doubled_in_silence(tmp_path: Path) -> None:
    """Protected by `prefill_retries`. Red when every failure is free."""
    async with split_pool(tmp_path, prefills=3, prefill_timeout_s=0.2) as pool:
        for station in pool.stations[:3]:
            station.fault(latency_s=0.6 + 2 * CANCEL_S)
        assert (await pool.post(ask()))[0] == 200
        assert [len(station.bodies) for station in pool.stations[:3]] == [1, 1, 0]
        assert pool.decode.metric("handoff_copies_total") == 1
        await pool.decode.counted({("answered", "prefill-timeout"): 1})


@pytest.mark.parametrize(
    ("form", "used"),
    [
        ("{0},{1}", 0),
        (" {0} ,\t{1} ", 0),
        (",,{1},", 1),
        ("{1}", 1),
        ("nonsense,{1}", 1),
        ("http://{0}/,{1}", 1),
        ("127.0.0.1,{1}", 1),
        ("[::1]:9,{1}", 1),
        ("{2},{0}", 0),
        ("", None),
        ("nonsense", None),
        ("[::ffff:127.0.0.1]:1", None),
        ("169.254.169.254:80", None),
        ("localhost:{3}", None),
    ],
)
async def test_D28_the_first_member_of_the_list_is_used(
    form: str, used: int | None, tmp_path: Path
) -> None:
    """Protected by `targets.parse` and `Guard.allowed`. Red when the guard allows all."""
    async with split_pool(tmp_path, prefills=2) as pool:
        addresses = [station.address for station in pool.stations]
        port = pool.prefill.sidecar.port
        targets = form.format(*addresses, port)
        assert (await pool.post(ask(), targets=targets))[0] == 200
        served = [len(station.bodies) for station in pool.stations[:2]]
        assert served == [used == 0, used == 1]
        outcome = "answered" if used is not None else "whole"
        await pool.decode.ended(outcome)


async def test_D28_the_first_reachable_one_is_used(tmp_path: Path) -> None:
    """Protected by rule 5 of `Handoff` and `ENGINE_ABSENT`. Red when only one is tried."""
    async with split_pool(tmp_path, prefills=2) as pool:
        gone = pool.stations[0]
        await gone.sidecar.relay.close()
        assert (await pool.post(ask()))[0] == 200
        assert (gone.bodies, len(pool.stations[1].bodies)) == ([], 1)
        await pool.decode.counted({("answered", "split"): 1})
        assert pool.decode.metric("handoff_copies_total") == 0


# --- D08, D10-D13: pulls --------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_D08_a_client_that_leaves_during_prefill_leaves_no_pinned_block(
    stream: bool, tmp_path: Path
) -> None:
    """Protected by rule 3 of `Handoff` and `Handover.serve`, which goes on after a cancellation.

    Red when `PrefillLeg.cancel` does nothing (the prefill is computed to its end and pinned).
    """
    async with split_pool(tmp_path, engines={"prefill_tokens_per_s": 10.0}) as pool:
        await pool.gone_once(ask(stream=stream), lambda: pool.prefill.bodies)
        await until(lambda: not pool.prefill.sim.driver.engine.running)
        await pool.settle()
        assert pool.prefill.pins.counters.issued == 0
        assert pool.decode.bodies == []
        await pool.decode.counted({("client-gone", "prefill"): 1})


@pytest.mark.parametrize("stream", [False, True])
async def test_D08_a_client_that_leaves_before_the_pull_frees_the_prefill_engine(
    stream: bool, tmp_path: Path
) -> None:
    """Protected by rule 3 of `Handoff` and `Handover.serve`, which outlives its client.

    Red when the handler ends with its client: the blocks stay pinned for their lease.
    """
    async with split_pool(tmp_path) as pool:
        pool.decode.fault(latency_s=0.3)  # before it reads the parameters
        await pool.gone_once(ask(stream=stream), lambda: pool.decode.bodies)
        await until(lambda: pool.prefill.pins.counters.pulled == 1, within_s=5)
        await pool.settle()
        assert len(pool.decode.bodies) == 1
        await pool.decode.counted({("client-gone", "split"): 1})
        assert pool.decode.metric("handoff_completed_after_disconnect_total") == 1


async def test_D08_a_prefill_that_is_answering_is_a_commitment_though_the_client_leaves(
    tmp_path: Path,
) -> None:
    """Protected by `PrefillLeg.cancel`, which lets an answer end that has begun, and by the plan's
    `release`. Red when the leg is cut: nobody pulls, nobody frees.
    """
    left = asyncio.Event()
    whole = prefilled()

    async def script(talk: Conversation) -> None:
        await talk.send(b"HTTP/1.1 200 OK\r\n" + JSON + b"Content-Length: %d\r\n\r\n" % len(whole))
        await talk.send(whole[:10])
        await left.wait()
        await talk.send(whole[10:])

    upstreams = {0: RawUpstream(script), -1: RawUpstream(answer(b"{}", fields=JSON))}
    async with split_pool(tmp_path, upstreams=upstreams) as pool:
        await pool.gone_once(ask(), lambda: pool.prefill.bodies)
        await asyncio.sleep(2 * CANCEL_S)
        left.set()
        await until(lambda: pool.decode.bodies)
        release = json.loads(pool.decode.bodies[0])
        assert release["max_tokens"] == 1
        assert release["kv_transfer_params"] == json.loads(whole)["kv_transfer_params"]
        await pool.settle()
        await pool.decode.counted({("client-gone", "split"): 1})
        assert pool.decode.metric("handoff_completed_after_disconnect_total") == 1


async def test_D08_a_client_that_leaves_in_mid_answer_ends_it(tmp_path: Path) -> None:
    """Protected by `AbortDecode`. Red when `DecodeLeg.cancel` does nothing."""
    async with split_pool(tmp_path, engines={"decode_step_s": 0.05}) as pool:
        engine = pool.decode.sim.driver.engine
        body = ask(stream=True, max_tokens=400)
        await pool.gone_once(body, lambda: pool.prefill.pins.counters.pulled and engine.running)
        await until(lambda: not engine.running)
        await pool.settle()
        await pool.decode.ended("client-gone")
        assert engine.counters.generation_tokens < 400, "it ran to its end"


async def test_D08_a_decode_engine_that_refuses_shows_as_stranded(tmp_path: Path) -> None:
    """Protected by `Handover.count`. Red when stranded sets are not counted."""
    async with split_pool(tmp_path) as pool:
        pool.means_harm = True
        pool.decode.fault(status=422)
        status, _ = await pool.post(ask())
        issued, counters = 1, pool.prefill.pins.counters
        assert status == 422
        assert counters.issued == issued
        missing = counters.issued - counters.pulled - counters.returned
        assert pool.decode.metric("handoff_stranded_total", reason="decode-rejected") == missing
        await pool.decode.counted({("passed", "split"): 1})


async def test_D08_no_prefill_is_asked_for_while_the_local_engine_is_down(tmp_path: Path) -> None:
    """Protected by `Splitter._found` (readiness first). Red without that check."""
    async with split_pool(tmp_path, health_interval_s=0.02) as pool:
        pool.decode.fault(health_status=503)
        await until(lambda: not pool.decode.sidecar.engine.ready)
        assert (await pool.post(ask()))[0] == 200  # it answers all the same
        assert pool.prefill.bodies == []
        await pool.decode.counted({("whole", "engine-not-ready"): 1})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_D10_a_failed_pull_is_computed_here_and_the_client_sees_nothing_of_it(
    path: str, stream: bool, tmp_path: Path
) -> None:
    """Protected by rule 7 of `Handoff` and by `Opening` in `DecodeLeg._decide`.

    Red when the first event is passed at once: a stream's client then sees the error event.
    """
    body = ask(stream=stream)
    if path == CHAT:
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
    async with split_pool(tmp_path) as pool:
        pool.means_harm = True  # what failed to be pulled stays pinned
        pool.decode.fault(fail_pulls=1)
        status, got = await pool.post(body, path)
        assert (status, text_of(got)) == (200, text_of(await pool.alone(body, path)))
        assert [params_of(one) is None for one in pool.decode.bodies] == [False, True]
        sent = json.dumps(body).encode()
        assert pool.decode.bodies[1] == (with_usage(sent, asked(sent)) if stream else sent)
        reason = "pull-error-event" if stream else "pull-status"
        await pool.decode.counted({("answered", reason): 1})


@pytest.mark.parametrize("stream", [False, True])
async def test_D10_policy_may_forbid_to_compute_here(stream: bool, tmp_path: Path) -> None:
    """Protected by `on_pull_failure`. Red when it is not handed to the policy."""
    async with split_pool(tmp_path, on_pull_failure="fail") as pool:
        pool.means_harm = True
        pool.decode.fault(fail_pulls=1)
        status, got = await pool.post(ask(stream=stream))
        assert status == (200 if stream else 500)
        assert b'"error"' in got
        assert len(pool.decode.bodies) == 1
        await pool.decode.ended("passed")


async def test_D10_a_pull_that_hangs_is_given_up_in_time(tmp_path: Path) -> None:
    """Protected by the decode leg's limit. Red without `_arm` in `Handover._send_decode`."""

    async def script(talk: Conversation) -> None:
        if NAME in talk.request.body:
            await talk.reader.read(1)
            return
        await answer(b'{"choices":[{"text":"ok"}]}', fields=JSON)(talk)

    upstreams = {0: RawUpstream(answer(prefilled(), fields=JSON)), -1: RawUpstream(script)}
    async with split_pool(tmp_path, upstreams=upstreams, answer_timeout_s=0.3) as pool:
        assert await pool.post(ask()) == (200, b'{"choices":[{"text":"ok"}]}')
        await pool.decode.counted({("answered", "pull-timeout"): 1})


async def test_D10_once_a_byte_was_sent_nothing_is_repeated(tmp_path: Path) -> None:
    """Protected by `Handoff` (STREAMING) and `cut`. Red when a broken stream is computed again."""

    async def script(talk: Conversation) -> None:
        await talk.send(SSE)
        await talk.chunk(b'data: {"choices":[{"text":"a"}]}\n\n')
        await asyncio.sleep(0.05)
        talk.reset()

    upstreams = {0: RawUpstream(answer(prefilled(), fields=JSON)), -1: RawUpstream(script)}
    async with split_pool(tmp_path, upstreams=upstreams) as pool:
        with pytest.raises(aiohttp.ClientPayloadError):
            await pool.post(ask(stream=True))
        await pool.settle()
        assert len(pool.decode.bodies) == 1
        await pool.decode.counted({("cut", "split"): 1})


async def test_D11_parameters_are_those_of_this_prefills_engine(tmp_path: Path) -> None:
    """Protected by `Handoff`, which keeps none. Red when parameters are cached by target."""
    async with split_pool(tmp_path) as pool:
        for life in range(2):
            body = ask(f"life{life}")
            status, got = await pool.post(body)
            assert (status, text_of(got)) == (200, text_of(await pool.alone(body)))
            params = params_of(pool.decode.bodies[-1])
            assert params["remote_engine_id"] == pool.prefill.sim.driver.engine_id
            pool.prefill.sim.restart()
        await pool.decode.counted({("answered", "split"): 2})


@pytest.mark.parametrize("host", ["0.0.0.0", "localhost", "127.0.0.1"])
async def test_D12_an_address_that_leads_home_is_counted(host: str, tmp_path: Path) -> None:
    """Protected by `params.points_at_itself`. Red when `PrefillLeg` does not look."""
    upstreams = {
        0: RawUpstream(answer(prefilled(remote_host=host), fields=JSON)),
        -1: RawUpstream(answer(b"{}", fields=JSON)),
    }
    async with split_pool(tmp_path, upstreams=upstreams) as pool:
        assert (await pool.post(ask()))[0] == 200
        assert params_of(pool.decode.bodies[0])["remote_host"] == host
        # On one machine, as here, loopback is right: only what names no machine is wrong.
        assert pool.decode.metric("handoff_misaddressed_total") == 1


@pytest.mark.parametrize("kind", [b"application/json", b"text/event-stream"])
async def test_D13_no_client_sees_parameters_wherever_an_engine_shows_them(
    kind: bytes, tmp_path: Path
) -> None:
    """Protected by `Passage.run`. Red when everybody counts as trusted."""
    text = b'{"id":"x","kv_transfer_params":{"remote_host":"10.0.0.9"},"usage":{}}'
    expected = b'{"id":"x","usage":{}}'
    if kind == b"text/event-stream":
        text, expected = (b"data: " + one + b"\n\ndata: [DONE]\n\n" for one in (text, expected))
    fields = b"Content-Type: " + kind + b"\r\n"
    upstreams = {
        0: RawUpstream(answer(prefilled(), fields=JSON)),
        -1: RawUpstream(answer(text, fields=fields)),
    }
    async with split_pool(tmp_path, upstreams=upstreams) as pool:
        assert await pool.post(ask(stream=kind != b"application/json")) == (200, expected)
        assert await pool.post(ask(), targets="") == (200, expected)
        assert pool.decode.metric("params_stripped_total", direction="answer") == 2
        # nor does a client that calls the prefill sidecar itself
        async with pool.session.post(pool.prefill.url + COMPLETIONS, json=ask()) as response:
            assert NAME not in await response.read()


# --- D19, D29 -------------------------------------------------------------------------------------


async def test_D19_the_clients_key_and_trace_reach_both_engines_under_fresh_ids(
    tmp_path: Path,
) -> None:
    """Protected by `headers.for_leg`. Red when `authorization` is dropped there."""
    upstreams = {
        0: RawUpstream(answer(prefilled(), fields=JSON)),
        -1: RawUpstream(answer(b"{}", fields=JSON + b"X-Request-Id: engine-says\r\n")),
    }
    headers = {
        "authorization": "Bearer client-key",
        "traceparent": f"00-{'a' * 32}-{'b' * 16}-01",
        "x-request-id": "mine",
        "accept-encoding": "gzip",
        "x-gateway-destination-endpoint": "10.0.0.1:1",
    }
    async with split_pool(tmp_path, upstreams=upstreams) as pool:
        url = pool.decode.url + COMPLETIONS
        fields = {**headers, PREFILLER: pool.targets}
        async with pool.session.post(url, json=ask(), headers=fields) as response:
            assert response.status == 200
            assert response.headers["x-request-id"] == "mine"
        legs = [
            next(one for one in upstream.received if one.line.startswith(b"POST"))
            for upstream in upstreams.values()
        ]
        for leg in legs:
            assert leg.values(b"authorization") == [b"Bearer client-key"]
            assert leg.values(b"traceparent") == [headers["traceparent"].encode()]
            assert leg.values(b"accept-encoding") == [b"identity"]
            for name in (b"x-epp-leg", b"x-epp-decision-id", b"x-gateway-destination-endpoint"):
                assert leg.values(name) == []
        ids = [leg.values(b"x-request-id") for leg in legs]
        assert [len(one) for one in ids] == [1, 1]
        assert len({b"mine", *ids[0], *ids[1]}) == 3


async def test_D29_clients_that_leave_disturb_no_others(tmp_path: Path) -> None:
    """Protected by `Handoff._left`: who leaves is no failure. Red when a leg is sent again then."""
    async with split_pool(tmp_path, engines={"num_blocks": 4096}) as pool:

        async def one(number: int) -> bytes | None:
            body = ask(f"n{number}", stream=number % 4 < 2, max_tokens=40)
            if number % 2:
                try:
                    async with asyncio.timeout(0.02 + 0.01 * (number % 9)):
                        await pool.post(body)
                except TimeoutError:
                    pass
                return None
            return (await pool.post(body))[1]

        async with asyncio.TaskGroup() as tg:
            tasks = [tg.create_task(one(number)) for number in range(50)]
        for number, task in enumerate(tasks):
            got = task.result()
            if got is not None:
                assert text_of(got), number
        await pool.settle()
        endings = pool.decode.handoffs()
        assert endings["answered", "split"] >= 25, endings
        assert {ending for ending, _ in endings} <= {"answered", "client-gone"}


def prefilled(**changes: Any) -> bytes:
    """A prefill engine's answer."""
    params = {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [[1]],
        "remote_engine_id": "e",
        "remote_request_id": "r",
        "remote_host": "10.0.0.1",
        "remote_port": 5600,
        **changes,
    }
    return json.dumps({"choices": [], "kv_transfer_params": params}).encode()


# --- D14: what it cost ----------------------------------------------------------------------------


def usage(cached: int, answered: int) -> bytes:
    counted = {"prompt_tokens": 100, "completion_tokens": answered}
    return json.dumps({**counted, "prompt_tokens_details": {"cached_tokens": cached}}).encode()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_D14_cached_tokens_are_the_prefill_engines(stream: bool, tmp_path: Path) -> None:
    """Protected by `Recounted`. Red when the decode engine's count passes: all of the prompt."""
    content = b'{"choices":[{"index":0,"text":"a"}],"usage":' + usage(100, 20) + b"}"

    async def decode(talk: Conversation) -> None:
        if stream:
            event = b"data: " + content + b"\n\n"
            await talk.send(SSE)
            await talk.chunk(event[:70])  # in the midst of the usage
            await talk.chunk(event[70:] + b"data: [DONE]\n\n")
            await talk.send(b"0\r\n\r\n")
        else:
            await answer(content, fields=JSON)(talk)

    first = prefilled()[:-1] + b',"usage":' + usage(32, 1) + b"}"
    upstreams = {0: RawUpstream(answer(first, fields=JSON)), -1: RawUpstream(decode)}
    async with split_pool(tmp_path, upstreams=upstreams) as pool:
        options = {"include_usage": True} if stream else None
        status, got = await pool.post(ask(stream=stream, stream_options=options))
        assert status == 200
        expected = content.replace(b'"cached_tokens": 100', b'"cached_tokens": 32')
        assert got == (b"data: " + expected + b"\n\ndata: [DONE]\n\n" if stream else expected)


async def test_D14_an_engine_that_computes_all_itself_counts_for_itself(tmp_path: Path) -> None:
    """Protected by `Handover._send_decode`, which asks for no other count without a transfer.

    Red when the prefill engine's count is taken wherever there was a prefill leg.
    """
    content = b'{"choices":[{"index":0,"text":"a"}],"usage":' + usage(64, 20) + b"}"
    nothing = b'{"choices":[],"usage":' + usage(32, 1) + b"}"
    upstreams = {
        0: RawUpstream(answer(nothing, fields=JSON)),
        -1: RawUpstream(answer(content, fields=JSON)),
    }
    async with split_pool(tmp_path, upstreams=upstreams) as pool:
        assert await pool.post(ask()) == (200, content)
        await pool.decode.counted({("answered", "no-params"): 1})
