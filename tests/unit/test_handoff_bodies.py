"""What engines get in place of a client's body: exact text, beyond what faults D01-D03 show."""

import json

import pytest

from epp.bodies.sharing import Api
from epp.bodies.spans import Body, NotAnObjectError
from sidecar.bodies import api_of, splittable, streams
from sidecar.connectors import Meeting, Plan
from sidecar.connectors.nixlv2 import NixlV2
from sidecar.transfer.redaction import NAME
from sidecar.transfer.targets import Target

PLAN: Plan = NixlV2()
MEETING = Meeting(leg="r-p1", target=Target("10.0.0.1", 8000))


def test_only_generative_apis_are_split() -> None:
    assert api_of("/v1/completions") is Api.COMPLETIONS
    assert api_of("/v1/chat/completions") is Api.CHAT
    assert api_of("/inference/v1/generate") is Api.GENERATE
    for path in ("/v1/embeddings", "/tokenize", "/v1/response", "/v1/completions/", "/health", ""):
        assert api_of(path) is None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"nul",
        b"[1]",
        b'"x"',
        b"{",
        b'{"a":1,}',
        b'{"a":1} x',
        b'{"a":NaN}',
        b'\xef\xbb\xbf{"a":1}',
        b'{"a":"\\ud800"}',
        '{"a":1}'.encode("utf-16"),
        b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)
def test_what_is_not_strict_json_is_not_edited(text: bytes) -> None:
    with pytest.raises(NotAnObjectError):
        Body.read(text)


@pytest.mark.parametrize(
    ("text", "after"),
    [
        (b"{}", b'{"k":0}'),
        (b" { } ", b' { "k":0} '),
        (b'{"a":1}', b'{"a":1,"k":0}'),
        (b'{"a":1 }\n', b'{"a":1 ,"k":0}\n'),
        (b'{"k":{"k":1}}', b'{"k":0}'),
        (b'{"\\u006b":1, "a":"}"}', b'{"\\u006b":0, "a":"}"}'),
        (b'{"k":1,"a":[],"k":2}', b'{"k":0,"a":[],"k":0}'),
        (b'{"gone":1}', b'{"k":0}'),
        (b'{"gone":1,"a":2}', b'{"a":2,"k":0}'),
        (b'{"gone":1,"gone":2,"a":2,"gone":3}', b'{"a":2,"k":0}'),
        (b'{"a":"\\"}{","gone":"x\\\\"}', b'{"a":"\\"}{","k":0}'),
    ],
)
def test_members_keep_their_place_and_new_ones_come_last(text: bytes, after: bytes) -> None:
    assert Body.read(text).edited(put={"k": b"0"}, drop={"gone"}) == after


def test_the_last_of_equal_names_counts() -> None:
    body = Body.read(b'{"stream":true,"a":1,"a":2}')
    assert (body.value("a"), body.value("b")) == (b"2", None)
    assert streams(body)
    assert not streams(Body.read(b'{"stream":true,"stream":false}'))


def test_one_token_in_n_is_kept_at_one() -> None:
    body = Body.read(b'{"prompt":"x","n":null}')
    assert json.loads(PLAN.prefill(body, Api.COMPLETIONS, MEETING))["n"] == 1
    bare = Body.read(b'{"prompt":"x"}')
    assert "n" not in json.loads(PLAN.prefill(bare, Api.COMPLETIONS, MEETING))


def test_a_release_leg_pulls_and_ends_at_once() -> None:
    body = Body.read(b'{"prompt":"x","stream":true,"max_tokens":900}')
    sent = json.loads(PLAN.release(body, Api.COMPLETIONS, b'{"remote_port":1}'))
    assert sent["max_tokens"] == 1
    assert sent["stream"] is False
    assert sent[NAME] == {"remote_port": 1}


def test_parameters_go_out_in_their_own_bytes() -> None:
    odd = b'{ "remote_port" : 1, "new" : 1e400, "id" : 18446744073709551616 }'
    assert odd in PLAN.decode(Body.read(b'{"prompt":"x"}'), Api.COMPLETIONS, odd)


def test_the_plan_says_what_cannot_be_split() -> None:
    body = Body.read(b'{"prompt":"x","n":2}')
    assert PLAN.unsplittable(body, Api.COMPLETIONS) == splittable(body, Api.COMPLETIONS) == "n"
