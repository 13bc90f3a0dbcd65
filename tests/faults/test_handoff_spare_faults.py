"""Connections that a decode leg with parameters may go over (fault D15): what it carries must not
be sent twice, so it must not meet an end that was closed long ago.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from sidecar.relay.pool import RECENT_S
from tests.fakes.split_pool import prompt, split_pool
from tests.fakes.upstreams import Conversation, RawUpstream, answer

pytestmark = pytest.mark.usefixtures("each_relay")

JSON = b"Content-Type: application/json\r\n"
ASK = {"prompt": prompt("a"), "max_tokens": 8}


def prefilling() -> RawUpstream:
    """A prefill engine that hands over other blocks with each answer."""

    async def script(talk: Conversation) -> None:
        params = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [[1]],
            "remote_engine_id": "e",
            "remote_request_id": f"r{len(upstream.received)}",
            "remote_host": "10.0.0.1",
            "remote_port": 5600,
        }
        body = json.dumps({"choices": [], "kv_transfer_params": params}).encode()
        await answer(body, fields=JSON)(talk)

    upstream = RawUpstream(script)
    return upstream


def params_of(body: bytes) -> Any:
    return json.loads(body).get("kv_transfer_params")


async def test_D15_parameters_that_met_a_dead_connection_are_not_sent_again(tmp_path: Path) -> None:
    """Protected by `Engines.ask`, which repeats nothing that was sent `once`, and by rule 7 of
    `Handoff`. Red when it is repeated like any other request: both times with the parameters."""

    async def script(talk: Conversation) -> None:
        if len(pool.decode.bodies) == 2:
            talk.reset()
            return
        await answer(b"{}", fields=JSON)(talk)

    decoding = RawUpstream(answer(b"{}", fields=JSON))
    async with split_pool(tmp_path, upstreams={0: prefilling(), -1: decoding}) as pool:
        ready = decoding.script

        async def told(talk: Conversation) -> None:
            await (script if talk.request.line.startswith(b"POST ") else ready)(talk)

        decoding.script = told
        assert [(await pool.post(ASK))[0] for _ in range(2)] == [200, 200]
        first, lost, again = (params_of(body) for body in pool.decode.bodies)
        assert first["remote_request_id"] != lost["remote_request_id"]
        assert again is None
        await pool.decode.counted({("answered", "split"): 1, ("answered", "pull-lost"): 1})


@pytest.mark.parametrize("pause_s", [0.0, RECENT_S + 0.1], ids=["at once", "later"])
async def test_D15_parameters_go_over_no_connection_that_was_spare_for_long(
    pause_s: float, each_relay: str, tmp_path: Path
) -> None:
    """Protected by `Engines._recent`. Red when any spare connection will do: engines close them
    after a while, and the leg's loss would cost a prompt."""
    decoding = RawUpstream(answer(b"{}", fields=JSON))
    async with split_pool(tmp_path, upstreams={0: prefilling(), -1: decoding}) as pool:
        for _ in range(2):
            assert (await pool.post(ASK))[0] == 200
            await asyncio.sleep(pause_s)
        legs = [one.connection for one in decoding.received if one.line.startswith(b"POST ")]
        if pause_s or each_relay == "aiohttp":
            assert legs[0] != legs[1]
        else:
            assert legs[0] == legs[1], "it was in use a moment ago"
