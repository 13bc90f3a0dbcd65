"""Parameters of a handoff: from clients, on legs, in prefill answers and in answers to clients."""

import json
from typing import Any

import pytest

from epp.bodies.sharing import Api
from epp.bodies.spans import Body
from sidecar.connectors import Meeting
from sidecar.connectors.nixlv2 import NixlV2
from sidecar.transfer.answers import EventFilter, Filter, answer_filter
from sidecar.transfer.params import Unreadable, cleaned, points_at_itself, read_answer
from sidecar.transfer.redaction import MAX_HELD, NAME, JsonFilter
from sidecar.transfer.targets import Target
from tests.fakes.handoffs import recorded, rows

GOOD = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[1, 2]],
    "remote_engine_id": "e",
    "remote_request_id": "r",
    "remote_host": "10.0.0.1",
    "remote_port": 5600,
}

MEETING = Meeting(leg="r-p1", target=Target("10.0.0.1", 8000))
leg_error = NixlV2().leg_error


def passed(content: Filter, *pieces: bytes) -> bytes:
    return b"".join([*map(content.feed, pieces), content.finish()])


# --- from clients


@pytest.mark.parametrize("row", rows("spellings.jsonl"), ids=lambda row: row["name"])
def test_every_spelling_of_the_list_is_taken_out(row: dict[str, Any]) -> None:
    assert cleaned(row["body"].encode()) == row["cleaned"].encode()


def test_a_body_that_cannot_name_them_is_the_same_object() -> None:
    body = b'{"prompt":"\\u00e9\\ud83d"}'
    assert cleaned(body) is body
    assert cleaned(b"not json") == b"not json"  # the engine's own 400 says more


@pytest.mark.parametrize(
    "body",
    [
        '{"kv_transfer_params":{}}'.encode("utf-16"),
        '{"kv_transfer_params":{}}'.encode("utf-16-le"),
        '{"kv_transfer_params":{}}'.encode("utf-32-be"),
        b'{"kv_transfer_params":{}',
        b'{"a":1 "kv_transfer_params":{}}',
        b'{"kv_trans"kv_transfer_params":1,fer_params":1}',
        b'{"kv_transfer_params":"\xff"}',
        b'{"kv_transfer_params":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"vllm_xargs":' * 6 + b'{"kv_transfer_params":1}' + b"}" * 6,
    ],
)
def test_what_only_some_parser_understands_is_refused(body: bytes) -> None:
    with pytest.raises(Unreadable, match="body"):
        cleaned(body)


# --- on legs


def test_our_own_prefill_leg_is_accepted() -> None:
    body = Body.read(b'{"prompt":"x","vllm_xargs":{"a":1}}')
    assert leg_error(NixlV2().prefill(body, Api.COMPLETIONS, MEETING)) is None


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("nul", "not-json"),
        ("{}", "params-not-single"),
        ('{"kv_transfer_params":%s,"kv\\u005ftransfer_params":%s}', "params-not-single"),
        ('{"kv_transfer_params":null}', "params-not-an-object"),
        ('{"kv_transfer_params":1e999}', "params-not-an-object"),
        ('{"kv_transfer_params":%s}' % ("9" * 5000), "params-not-an-object"),
        ('{"kv_transfer_params":{"do_remote_decode":true}}', "params-pull"),
        ('{"kv_transfer_params":{"do_remote_decode":1,"do_remote_prefill":false}}', "params-pull"),
        (
            '{"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":true}}',
            "params-pull",
        ),
        (
            '{"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,'
            '"remote_host":"x"}}',
            "params-remote",
        ),
        ('{"vllm_xargs":{"kv_transfer_params":1},"kv_transfer_params":%s}', "params-nested"),
        (
            '{"vllm_xargs":{"kv_transfer_params":1},"vllm_xargs":{},"kv_transfer_params":%s}',
            "params-nested",
        ),
    ],
)
def test_a_leg_that_asks_for_more_than_a_prefill_is_refused(body: str, reason: str) -> None:
    ask = '{"do_remote_decode":true,"do_remote_prefill":false,"remote_host":null}'
    assert leg_error(body.replace("%s", ask).encode()) == reason


def test_null_remotes_are_what_other_sidecars_send() -> None:
    ask = {"do_remote_decode": True, "do_remote_prefill": False, "remote_block_ids": None}
    assert leg_error(json.dumps({"prompt": "x", NAME: ask}).encode()) is None


# --- prefill answers


def answer(**changes: object) -> bytes:
    return json.dumps({"choices": [], NAME: {**GOOD, **changes}}).encode()


@pytest.mark.parametrize("body", recorded("prefill"), ids=lambda body: body["id"])
def test_answers_of_a_real_vllm_are_read(body: dict[str, Any]) -> None:
    read = read_answer(json.dumps(body).encode())
    assert read.transfer
    assert (read.transfer.host, read.transfer.port) == ("127.0.0.1", 5601)
    assert read.finish_reason == "length"
    assert read.prompt_tokens == body["usage"]["prompt_tokens"]
    assert read.cached_tokens == 0
    assert json.loads(read.transfer.take()) == body[NAME]


def test_parameters_are_handed_on_in_their_own_bytes() -> None:
    text = json.dumps(GOOD)[:-1].encode() + b', "new" : [1e400, 18446744073709551617] }'
    read = read_answer(b'{"kv_transfer_params" : %s , "id":1}' % text)
    assert read.transfer
    assert read.transfer.take() == text


@pytest.mark.parametrize("blocks", [[], [[]], [[1], [2]], [1, 2, 3]])
def test_block_lists_of_all_versions_are_legal(blocks: object) -> None:
    assert read_answer(answer(remote_block_ids=blocks)).transfer


@pytest.mark.parametrize(
    "changes",
    [
        {"do_remote_prefill": False},
        {"do_remote_prefill": 1},
        {"do_remote_decode": True},
        {"remote_block_ids": None},
        {"remote_block_ids": ["1"]},
        {"remote_engine_id": ""},
        {"remote_engine_id": None},
        {"remote_request_id": ""},
        {"remote_host": ""},
        {"remote_host": 5},
        {"remote_port": 0},
        {"remote_port": 65536},
        {"remote_port": "5600"},
        {"remote_port": True},
    ],
)
def test_parameters_that_would_hang_or_kill_an_engine_are_not_used(
    changes: dict[str, object],
) -> None:
    read = read_answer(answer(**changes))
    assert (read.transfer, read.missing) == (None, "incomplete-params")


@pytest.mark.parametrize("name", sorted(GOOD))
def test_each_field_is_needed(name: str) -> None:
    short = {key: value for key, value in GOOD.items() if key != name}
    read = read_answer(json.dumps({NAME: short}).encode())
    assert (read.transfer, read.missing) == (None, "incomplete-params")


def test_an_odd_usage_or_choice_hides_nothing() -> None:
    body = json.dumps({"usage": "x", "choices": 5, NAME: GOOD}).encode()
    read = read_answer(body)
    assert read.transfer
    assert (read.prompt_tokens, read.cached_tokens, read.finish_reason) == (None, None, None)


@pytest.mark.parametrize(
    ("host", "home"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("0.0.0.0", True),
        ("::", True),
        ("::1", True),
        ("10.0.0.1", False),
        ("prefill-0.pods", False),
    ],
)
def test_hosts_that_mean_the_asking_machine_are_known(host: str, home: bool) -> None:
    assert points_at_itself(host) is home


# --- answers to clients


@pytest.mark.parametrize("kind", ["application/json", "application/problem+json; charset=utf-8"])
def test_json_answers_are_filtered(kind: str) -> None:
    make = answer_filter(kind, "")
    assert make is not None
    assert passed(make(), b'{"kv_transfer_params":null,"a":1}') == b'{"a":1}'


@pytest.mark.parametrize(
    ("kind", "coding"),
    [("application/json", "gzip"), ("text/plain", ""), ("", ""), ("text/event-stream", "br")],
)
def test_other_and_compressed_answers_pass_untouched(kind: str, coding: str) -> None:
    assert answer_filter(kind, coding) is None


@pytest.mark.parametrize(
    ("text", "after"),
    [
        (b'{"response":{"kv_transfer_params":1},"a":2}', b'{"response":{},"a":2}'),
        (b'{"message":{"id":1,"kv_transfer_params":1}}', b'{"message":{"id":1}}'),
        (b'{"response":"kv_transfer_params"}', b'{"response":"kv_transfer_params"}'),
        (b'{"choices":[{"kv_transfer_params":1}]}', b'{"choices":[{"kv_transfer_params":1}]}'),
        (b'[{"kv_transfer_params":1}]', b'[{"kv_transfer_params":1}]'),
        (b"", b""),
        (b"oops", b"oops"),
        (b'{"a"', b'{"a"'),
        (b'{"a":1, "kv_tran', b'{"a":1, "kv_tran'),
        (b'{"a":1,"kv_transfer_params":{"x', b'{"a":1'),
        (b'{"a":1,,"kv_transfer_params":1}', b'{"a":1,,"kv_transfer_params":1}'),
        (b'{"a":1]', b'{"a":1]'),
        (b'{"\\x":1,"kv_transfer_params":1}', b'{"\\x":1}'),
        (b'{"a":1}{"kv_transfer_params":1}', b'{"a":1}{"kv_transfer_params":1}'),
    ],
)
def test_members_are_removed_where_engines_put_them_and_broken_text_passes(
    text: bytes, after: bytes
) -> None:
    assert passed(JsonFilter(), text) == after
    assert passed(JsonFilter(), *(text[at : at + 1] for at in range(len(text)))) == after


@pytest.mark.parametrize("length", [MAX_HELD - 1, MAX_HELD, MAX_HELD + 1, 50 * MAX_HELD])
def test_a_key_of_any_length_passes_and_is_not_held(length: int) -> None:
    content = JsonFilter()
    text = b'{"%s":[1,{"b":2}],"kv_transfer_params":1,"c":3}' % (b"k" * length)
    out, most = bytearray(), 0
    for at in range(len(text)):
        out += content.feed(text[at : at + 1])
        most = max(most, at + 1 - len(out))
    assert out + content.finish() == b'{"%s":[1,{"b":2}],"c":3}' % (b"k" * length)
    assert most <= MAX_HELD + len(b',"kv_transfer_params":1') + 2


def test_endless_white_space_is_not_held() -> None:
    content = JsonFilter()
    content.feed(b'{"kv_transfer_params":1')
    for _ in range(100):
        assert content.feed(b" " * MAX_HELD) == b""
    rest = content.feed(b',"a":1}') + content.finish()
    assert rest.endswith(b'"a":1}')
    assert len(rest) <= 2 * MAX_HELD + 10


def test_endless_white_space_before_a_key_is_not_held() -> None:
    content = JsonFilter()
    content.feed(b'{"a":1,')
    for _ in range(3):
        assert content.feed(b" " * MAX_HELD) == b""
    assert content.feed(b'"b":2}') == b"," + b" " * (MAX_HELD - 1) + b'"b":2}'


@pytest.mark.parametrize("body", recorded("stream"))
def test_recorded_streams_pass_byte_for_byte(body: str) -> None:
    text = body.encode()
    assert passed(EventFilter(), text) == text
    assert passed(EventFilter(), *(text[at : at + 7] for at in range(0, len(text), 7))) == text


@pytest.mark.parametrize(
    ("text", "after"),
    [
        (b'data: {"a":1,"kv_transfer_params":null}\n\n', b'data: {"a":1}\n\n'),
        (b'data:{"kv_transfer_params":{"x":"\\n"}}\r\n\r\n', b"data:{}\r\n\r\n"),
        (b'\xef\xbb\xbfdata: {"kv_transfer_params":1}\r\r', b"\xef\xbb\xbfdata: {}\r\r"),
        (b'a\n\xef\xbb\xbfdata: {"kv_transfer_params":1}\n', None),
        (b': {"kv_transfer_params":1}\nid: 5\nevent: x\n\n', None),
        (b'dat\ndata\ndatA: {"kv_transfer_params":1}\n', None),
        (b"data: [DONE]\n\n", None),
        (b'data: {"a":1\n\ndata: {"kv_transfer_params":1}\n\n', b'data: {"a":1\n\ndata: {}\n\n'),
        (b'data: {"a":1}\n\ndata: {"kv_\\u0074ransfer_params":1}', b'data: {"a":1}\n\ndata: {}'),
        (b"dat", None),
    ],
)
def test_events_are_filtered_line_by_line(text: bytes, after: bytes | None) -> None:
    expected = text if after is None else after
    assert passed(EventFilter(), text) == expected
    assert passed(EventFilter(), *(text[at : at + 1] for at in range(len(text)))) == expected


def test_whole_lines_that_cannot_name_them_are_the_same_object() -> None:
    piece = b'data: {"a":1}\n\n'
    assert EventFilter().feed(piece) is piece
