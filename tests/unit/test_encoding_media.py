"""What encoders are asked, and what is made of their answers."""

import json
from typing import Any

import pytest

from epp.bodies.sharing import Api
from epp.bodies.spans import Body
from sidecar.connectors import CONNECTORS, Connector, Ports, plan_of
from sidecar.encoding import media
from sidecar.encoding.media import MAX_ITEMS
from sidecar.transfer.params import bare_error

URL = '{"type":"image_url","image_url":{"url":"x"},"uuid":"u"}'
AUDIO = '{ "type" : "input_audio", "input_audio":{"data":"y"}}'
BLOCK = '{"type":"image","source":{"data":"x"}}'
INPUT = '{"type":"input_image","image_url":"x"}'
TEXT = '{"type":"text","text":"{\\"type\\":\\"image_url\\"}"}'


def body(text: str) -> Body:
    return Body.read(text.encode())


def turn(*parts: str) -> str:
    return f'{{"role":"user","content":[{",".join(parts)}]}}'


@pytest.mark.parametrize(
    ("api", "text", "expected"),
    [
        (Api.CHAT, f'{{"messages":[{turn(TEXT, URL, AUDIO)},{turn(URL)}]}}', [URL, AUDIO]),
        (Api.CHAT, '{"messages":[{"role":"user","content":"image_url"}]}', []),
        (Api.CHAT, f'{{"messages":[{turn(BLOCK)}]}}', []),
        (Api.CHAT, '{"messages":[{"content":[1]}]}', []),
        (Api.CHAT, '{"messages":3}', []),
        (Api.CHAT, "{}", []),
        (Api.MESSAGES, f'{{"messages":[{turn(TEXT, BLOCK)}]}}', [BLOCK]),
        (
            Api.MESSAGES,
            '{{"messages":[{}]}}'.format(turn(f'{{"type":"tool_result","content":[{BLOCK}]}}')),
            [BLOCK],
        ),
        (Api.RESPONSES, f'{{"input":[{turn(INPUT)}]}}', [INPUT]),
        (Api.RESPONSES, '{"input":"x"}', []),
        (Api.COMPLETIONS, '{"prompt":"x"}', []),
        (Api.GENERATE, '{"token_ids":[1]}', []),
    ],
)
def test_items_are_found_as_they_stand_each_once(api: Api, text: str, expected: list[str]) -> None:
    assert [item.decode() for item in media.items(body(text), api)] == expected


def test_only_so_many_items_are_looked_at() -> None:
    parts = [f'{{"type":"image_url","image_url":{number}}}' for number in range(MAX_ITEMS + 5)]
    assert len(media.items(body(f'{{"messages":[{turn(*parts)}]}}'), Api.CHAT)) == MAX_ITEMS


SHARED: dict[str, Any] = {"model": "m", "mm_processor_kwargs": {"size": 2.50}, "cache_salt": "s"}
OTHERS: dict[str, Any] = {"tools": [1], "stream": True, "n": 1, "stream_options": {}, "seed": 1}


@pytest.mark.parametrize(
    ("api", "where", "item", "limits"),
    [
        (Api.CHAT, "messages", URL, {"max_tokens": 1, "max_completion_tokens": 1}),
        (Api.MESSAGES, "messages", BLOCK, {"max_tokens": 1}),
        (Api.RESPONSES, "input", INPUT, {"max_output_tokens": 1, "store": False}),
    ],
)
@pytest.mark.parametrize("connector", CONNECTORS)
def test_a_leg_has_the_item_what_shapes_it_and_nothing_else(
    connector: Connector, api: Api, where: str, item: str, limits: dict[str, Any]
) -> None:
    asked = body(json.dumps({**OTHERS, **SHARED, where: []}))
    leg = media.leg(asked, api, item.encode())
    turns = [{"role": "user", "content": [json.loads(item)]}]
    assert json.loads(leg) == {**SHARED, where: turns, **limits, "stream": False}
    assert item.encode() in leg
    assert bare_error(leg) is None
    if connector != "shared-storage":
        assert plan_of(connector, Ports()).leg_error(leg) is not None, "it is no prefill leg"


def test_what_encoders_say_goes_on_in_their_own_bytes() -> None:
    first = b'{"choices":[],"ec_transfer_params":{"h1":{"peer_host":"a","n":18446744073709551616}}}'
    second = b'{"ec_transfer_params":{"h2":{"peer_host": "b"}}}'
    told = [media.told(one) for one in (first, second)]
    assert media.with_told(body('{ "messages":[]}'), told) == (
        b'{ "messages":[],"ec_transfer_params":{"h1":{"peer_host":"a","n":18446744073709551616},'
        b'"h2":{"peer_host": "b"}}}'
    )


@pytest.mark.parametrize(
    "answer", [b"", b"[]", b"{}", b'{"ec_transfer_params":null}', b'{"ec_transfer_params":[1]}']
)
def test_where_an_encoder_says_nothing_the_body_stays(answer: bytes) -> None:
    asked = body('{"messages":[]}')
    assert media.with_told(asked, [media.told(answer)]) is asked.raw


def test_the_machine_is_read_from_what_an_encoder_says() -> None:
    assert media.host_of(b'{"peer_host":"10.0.0.1","peer_port":1}') == "10.0.0.1"
    assert [media.host_of(text) for text in (b"{}", b"1", b'{"peer_host":1}')] == ["", "", ""]
