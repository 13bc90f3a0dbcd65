"""Field faults of paths, bodies and models: through a real Envoy where bytes have to arrive,
against the director where keys count."""

import gzip
import hashlib
import io
import json
import random
import tracemalloc
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from epp.errors import TooLarge
from epp.framework import EndpointId
from epp.request.apis import catalog
from epp.request.apis.catalog import ANY, Rules
from epp.request.apis.rewrite import with_model
from epp.request.offload import INLINE_BYTES
from epp.request.transport.grpc import TransportLimits
from epp.state.endpoints import Member
from tests.fakes.desk import POOL, Desk, ask, open_desk, post
from tests.fakes.picked_gateway import Rig, rig

JSON = {"content-type": "application/json"}
HEAD = "the same beginning of every prompt " * 10
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aaaa"}}


@asynccontextmanager
async def _pool(
    directory: Path, *, rules: Rules = ANY, limits: TransportLimits | None = None
) -> AsyncIterator[tuple[Rig, Desk, aiohttp.ClientSession]]:
    """A real Envoy, the real director, two backends that remember."""
    async with (
        rig(directory, limits=limits) as here,
        open_desk(2, rules=rules) as desk,
        aiohttp.ClientSession(here.gateway.url) as client,
    ):
        desk.members = [
            Member(id=EndpointId(POOL, engine.name, 1), address=engine.address)
            for engine in here.backends
        ]
        desk.pool.replace(desk.members, desk.now)
        desk.report([0, 0])
        here.director.script = desk.director.decide
        yield here, desk, client


def _seen(here: Rig) -> list[tuple[str, bytes]]:
    return [(seen.target, seen.body) for engine in here.backends for seen in engine.seen]


BROKEN = [
    b'{"model":',
    b"nul canary",
    b'["canary"]',
    b'"canary"',
    b'{"model":5,"x":"canary"}',
    b'{"model":null}',
    b'{"model":{"canary":1}}',
    b'{"model":"m","x":NaN}',
    b"",
]


async def test_A08_every_api_refuses_what_is_no_request_in_json_and_never_repeats_it(
    tmp_path: Path,
) -> None:
    """Protected by the model's check in `apis.reading.read`; red when it lets a null model pass."""
    paths = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages")
    async with _pool(tmp_path) as (here, desk, client):
        for path in (*paths, "/v1/embeddings", "/v1/messages/count_tokens"):
            for body in BROKEN:
                async with client.post(path, data=body, headers=JSON) as answer:
                    assert answer.status == 400, (path, body)
                    assert answer.content_type == "application/json"
                    text = await answer.text()
                assert "canary" not in text
                assert {"message", "type", "code"} <= set(json.loads(text)["error"])
        assert _seen(here) == []
        assert desk.witness.failures == []


PATHS = {
    "/v1/chat/completions?x=1": "chat-completions",
    "/v1/chat/completions/": "chat-completions",
    "/v1/chat/completions/?a=%2F&b=/v1/completions": "chat-completions",
    "/openai/v1/completions": "completions",
    "/v1/completions/render": "render",
    "/v1/responses?include[]=a": "responses",
    "/v1/messages?beta=true": "messages",
    "/v1/messages/count_tokens?beta=true": "count-tokens",
    "/v1/chat/completionsx": "passthrough",
    "/v1/chat/completions/x?y#z": "passthrough",
    "/primary-gateway-test?model=m": "passthrough",
}


async def test_A09_a_query_or_a_slash_hides_no_api_and_reaches_the_engine_as_it_was(
    tmp_path: Path,
) -> None:
    """Protected by `catalog.plain_path`; red when it gives the path as it came."""
    body = json.dumps({"model": "m", "prompt": HEAD, "input": HEAD}).encode()
    async with _pool(tmp_path) as (here, desk, client):
        for target in PATHS:
            url = URL(here.gateway.url + target.partition("#")[0], encoded=True)
            async with client.post(url, data=body, headers=JSON) as answer:
                assert answer.status == 200, target
        sent = {target.partition("#")[0] for target in PATHS}
        assert {target for target, _ in _seen(here)} == sent
        assert [request.api for _, request, _ in desk.witness.decisions] == list(PATHS.values())


def test_A09_the_longest_end_of_a_path_wins() -> None:
    """Protected by the order of `catalog.suffix_of`; red when it takes the shortest known end."""
    chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    for path in ("/v1/chat/completions", "/any/prefix/of/v1/chat/completions"):
        parsed = catalog.parse(post(chat, path=path))
        assert (parsed.api, parsed.unscored) == ("chat-completions", "")


SHAPES: list[tuple[str, dict[str, Any]]] = [
    *(
        ("/v1/completions", {"prompt": prompt})
        for prompt in ("text", ["a", "b"], [1, 2], [[1], [2]], [], None, {}, [None], [-1], 1e9)
    ),
    ("/v1/completions", {}),
    *(
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": content}]})
        for content in ("text", None, [{"type": "text", "text": "a"}, IMAGE], [5], [], 5, {})
    ),
    ("/v1/chat/completions", {"messages": None}),
    ("/v1/chat/completions", {"messages": [{"content": [{"type": "input_audio"}]}]}),
    *(
        (path, {"input": given})
        for path in ("/v1/responses", "/v1/embeddings")
        for given in ("text", ["a", "b"], [1, 2], [{"role": "user", "content": "a"}], [], None, 5)
    ),
    ("/v1/messages", {"messages": [{"role": "user", "content": [5]}], "system": 5}),
    ("/inference/v1/generate", {"token_ids": [2**40]}),
]


async def test_A10_every_shape_of_a_prompt_reaches_an_engine_unchanged(tmp_path: Path) -> None:
    """Protected by what `apis.openai.completions` catches; red without: a step that failed."""
    async with _pool(tmp_path) as (here, desk, client):
        bodies = []
        for path, fields in SHAPES:
            body = json.dumps({"model": "m", **fields}).encode()
            bodies.append((path, body))
            async with client.post(path, data=body, headers=JSON) as answer:
                assert answer.status == 200, (path, fields)
        assert sorted(_seen(here)) == sorted(bodies)
        assert desk.witness.failures == []


def _chat(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", lambda text: {"prompt": text}),
        ("/v1/completions", lambda text: {"prompt": [text, "b"]}),
        ("/v1/chat/completions", _chat),
        (
            "/v1/chat/completions",
            lambda text: _chat([{"type": "text", "text": text}, IMAGE]),  # type: ignore[arg-type]
        ),
        ("/v1/responses", lambda text: {"input": text}),
        ("/v1/responses", lambda text: {"input": [{"role": "user", "content": text}]}),
        ("/v1/responses", lambda text: {"input": "hi", "instructions": text}),
        ("/v1/messages", _chat),
        ("/v1/messages", lambda text: _chat("hi") | {"system": text}),
        ("/inference/v1/generate", lambda text: {"token_ids": list(text.encode())}),
    ],
)
async def test_A10_equal_beginnings_share_a_key_and_others_do_not(path: str, fields: Any) -> None:
    """Protected by `Pieces.prompt`; red when it forgets the pieces: no keys, or equal ones."""
    async with open_desk() as desk:
        for text in (HEAD + "one", HEAD + "another", "x" + HEAD):
            await desk.route({"model": "m", **fields(text)}, path=path)
        first, second, other = (request.keys for _, request, _ in desk.witness.decisions)
    assert first[0] == second[0]
    assert first[0] != other[0]


async def test_A11_unknown_models_pass_unless_the_operator_says_which_are_served(
    tmp_path: Path,
) -> None:
    """Protected by `catalog.admit`; red when it compares nothing."""
    rules = Rules(known_models=frozenset({"base", "adapter"}))
    async with _pool(tmp_path, rules=rules) as (here, _, client):
        for path, more in (("/v1/completions", {"prompt": "p"}), ("/v1/messages", _chat("p"))):
            for model, status in (("base", 200), ("adapter", 200), ("canary", 404), ("", 400)):
                sent = {"model": model, **more}
                async with client.post(path, json=sent) as answer:
                    assert answer.status == status
                    text = await answer.text()
                assert "canary" not in text
                if status == 404:
                    assert json.loads(text)["error"]["code"] == "model_not_found"
            async with client.post(path, json=more) as answer:
                assert answer.status == 400
        assert len(_seen(here)) == 4
    async with open_desk() as desk:
        await desk.route(ask() | {"model": "nobody knows it"})


async def test_A11_the_model_of_a_form_is_held_to_the_same_list() -> None:
    """Protected by `media._form_model`; red when it finds no model."""
    rules = Rules(known_models=frozenset({"whisper"}))
    headers = {"content-type": "multipart/form-data; boundary=x"}
    async with open_desk(rules=rules) as desk:
        statuses = []
        for model in (b"whisper", b"other"):
            body = b'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\n%s\r\n--x--' % model
            made = await desk.decide(body, path="/v1/audio/transcriptions", headers=headers)
            statuses.append(getattr(made, "status", 200))
    assert statuses == [200, 404]


EXACT = [
    b'{"model":"m","prompt":"p","temperature":1e2,"seed":12345678901234567890,"a":1,"a":2}',
    b'\n { "prompt" : "\\u00e9\xc3\xa9" , "model":"m","x":-0.0,"y":1E400 }\t',
    b'\xef\xbb\xbf{"model":"m","prompt":"\\ud83d"}',
]


async def test_A13_bodies_pass_byte_for_byte_and_what_is_no_json_number_is_refused(
    tmp_path: Path,
) -> None:
    """Protected by `reading.odd`; red when it takes the constants that Python's decoder knows."""
    async with _pool(tmp_path) as (here, _, client):
        for body in EXACT:
            async with client.post("/v1/completions", data=body, headers=JSON) as answer:
                assert answer.status == 200
        assert sorted(body for _, body in _seen(here)) == sorted(EXACT)
        for constant in (b"NaN", b"Infinity", b"-Infinity"):
            body = b'{"model":"m","prompt":"p","temperature":%s}' % constant
            async with client.post("/v1/completions", data=body, headers=JSON) as answer:
                assert answer.status == 400
        assert len(_seen(here)) == len(EXACT)


@pytest.mark.parametrize("body", EXACT)
def test_A13_another_model_changes_its_own_span_and_no_other_byte(body: bytes) -> None:
    """Protected by `rewrite.with_model`; red when it writes the body anew."""
    assert with_model(body, "longer name") == body.replace(b'"m"', b'"longer name"')


async def test_A14_compressed_prompts_are_scored_and_pass_as_they_were_sent(tmp_path: Path) -> None:
    """Protected by `encodings.unfolded`; red when it returns the body: invalid JSON, 400."""
    plain = json.dumps(ask(HEAD)).encode()
    sent = {"gzip": gzip.compress(plain), "deflate": zlib.compress(plain)}
    async with _pool(tmp_path) as (here, desk, client):
        for coding, body in sent.items():
            headers = {**JSON, "content-encoding": coding}
            async with client.post("/v1/completions", data=body, headers=headers) as answer:
                assert answer.status == 200
        assert [len(request.keys) > 0 for _, request, _ in desk.witness.decisions] == [True] * 2
        seen = [seen for engine in here.backends for seen in engine.seen]
        # aiohttp's server unfolds bodies by itself; the header shows that it had to.
        assert sorted(each.values("content-encoding")[0] for each in seen) == sorted(sent)
        assert [each.body for each in seen] == [plain] * 2


async def test_A14_a_coding_that_is_not_read_is_415_in_json(tmp_path: Path) -> None:
    """Protected by the check of the coding in `encodings.unfolded`; red without it: 400."""
    async with _pool(tmp_path) as (here, _, client):
        for coding in ("zstd", "br", "gzip, gzip"):
            headers = {**JSON, "content-encoding": coding}
            async with client.post(
                "/v1/completions", data=b"(\xb5/\xfd", headers=headers
            ) as answer:
                assert answer.status == 415
                assert (await answer.json())["error"]["code"] == "unsupported-media"
        assert _seen(here) == []


def test_A14_a_bomb_never_unfolds_past_the_limit() -> None:
    """Protected by the bound of `encodings._member`; red when it unfolds all and counts then."""
    bomb = post(gzip.compress(bytes(200_000_000), 1), headers={"content-encoding": "gzip"})
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge) as caught:
            catalog.parse(bomb, Rules(max_body_bytes=1_000_000))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.status == 413
    assert peak < 10_000_000


def test_A14_a_small_body_that_may_unfold_to_a_large_one_leaves_the_event_loop() -> None:
    """Protected by `catalog.work_bytes`; red when it counts the bytes that were sent."""
    body = gzip.compress(json.dumps(ask("word " * 1_000_000)).encode())
    assert len(body) < INLINE_BYTES
    assert catalog.work_bytes(post(body, headers={"content-encoding": "gzip"})) > INLINE_BYTES


async def test_A16_a_long_recording_reaches_the_engine_unchanged(tmp_path: Path) -> None:
    """Protected by the forms of `catalog._understood`; red when they are read as JSON: a step that
    failed."""
    sound = random.Random(16).randbytes(30_000_000)
    head = b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nwhisper\r\n--b\r\n'
    head += b'content-disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    body = head + sound + b"\r\n--b--\r\n"
    kind = {"content-type": "multipart/form-data; boundary=b"}
    limits = TransportLimits(max_request_bytes=40 * 2**20)
    async with _pool(tmp_path, limits=limits) as (here, desk, client):
        path = "/v1/audio/transcriptions"
        async with client.post(path, data=io.BytesIO(body), headers=kind) as answer:
            assert answer.status == 200
        (seen,) = [seen for engine in here.backends for seen in engine.seen]
        assert hashlib.sha256(seen.body).digest() == hashlib.sha256(body).digest()
        assert seen.values("content-type") == [kind["content-type"]]
        _, request, why = desk.witness.decisions[0]
        assert (request.model, request.scored, why) == ("whisper", False, "unscored")
        assert desk.witness.failures == []


async def test_A16_what_is_not_json_is_no_invalid_json() -> None:
    """Protected by the media type's check in `catalog._unread`; red without it: 400."""
    async with open_desk() as desk:
        for kind in ("multipart/form-data; boundary=x", "audio/wav", "application/octet-stream"):
            await desk.route(b"--x\r\n\0", headers={"content-type": kind})
            assert desk.witness.decisions[-1][2] == "unscored"
