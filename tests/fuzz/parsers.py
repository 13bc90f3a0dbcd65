"""Everything that reads what clients, engines or gateways write."""

import gzip
import json
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from google.protobuf.message import DecodeError

from epp._pb import extproc_pb2 as pb
from epp.bodies.rename import Rename
from epp.bodies.spans import Body, NotAnObjectError
from epp.bodies.usage import ResponseWatch
from epp.errors import Refusal
from epp.request import hints
from epp.request.apis import catalog, encodings, rewrite
from epp.request.exchange import Arrival
from epp.request.intake import answer_head, header_map, served_endpoint, subset_hint
from epp.request.subset import allowed
from sidecar.http.client import Head
from sidecar.http.incoming import Incoming
from sidecar.proxy import Limits
from sidecar.relay.answers import AnswerReader, Garbled
from sidecar.relay.requests import Broken, RequestReader
from tests.fakes import calls
from tests.fakes import extproc_messages as envoy
from tests.fuzz.hunt import Target

DATA = Path(__file__).parents[1] / "data" / "handoff"
KINDS = ("text/event-stream", "application/json", "text/event-stream; charset=utf-8", "x/y")
UNFOLDED = 100_000
MOST_PIECES = 60

_ASK = {"model": "m", "max_tokens": 5, "stream": True, "n": 1}
_PARTS = [{"type": "text", "text": "hé"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
_CHAT = {"messages": [{"role": "user", "content": "hi"}, {"role": "user", "content": _PARTS}]}
BODIES = [
    json.dumps(_ASK | members).encode()
    for members in (
        {"prompt": "hello"},
        {"prompt": [1, 2, 3]},
        {"prompt": [[1, 2], [3]]},
        {"prompt": ["a", "b"], "echo": False, "suffix": None},
        _CHAT | {"tools": [{"type": "function", "function": {"name": "f"}}]},
        _CHAT | {"system": [{"type": "text", "text": "s"}], "documents": ["d"]},
        {"input": "text", "instructions": "be brief"},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "t"}]}]},
        {"input": [[1, 2]], "dimensions": 3},
        {"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 3}},
        {"query": "q", "documents": ["a", {"text": "b"}], "text_1": "a", "text_2": ["b"]},
        {"tokens": [1, 2]},
        {"input_ids": [[1, 2], [3]], "sampling_params": [{"max_new_tokens": 3}], "extra_key": "k"},
        {"text": ["a", "bc"], "image_data": "i", "lora_path": "l"},
    )
] + [b'{"model":"\\ud800","prompt":"x"}', b"[]", b'{"model":5}', b"\xef\xbb\xbf{}"]

LIMITS = Limits(max_header_bytes=512, max_headers=8)
USUAL_REQUEST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
USUAL_ANSWER = b"HTTP/1.1 200 OK\r\nDate: x\r\nContent-Length: 2\r\n\r\n{}"
MESSAGES = [
    b"\x07POST /x?y HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
    b"GET / HTTP/1.1\r\nHost: y\r\n\r\n",
    b"\x03POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"2;a=b\r\n{}\r\n0\r\nX: 1\r\n\r\n",
    b"\xffGET / HTTP/1.1\r\nHost: x\r\nConnection: close, upgrade\r\nUpgrade: h2c\r\n\r\n",
    b"\x05GET / HTTP/1.0\r\nExpect: 100-continue\r\n\r\n",
    b"\x09HTTP/1.1 103 E\r\nLink: <x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    b"\x02HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: 1\r\n\r\n",
    b"\x40HTTP/1.1 200 OK\r\n\r\nuntil the end",
    b"\x40HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
    b"\x40" + USUAL_REQUEST,
    b"\x40" + USUAL_ANSWER,
]


def _recorded(name: str, member: str) -> list[bytes]:
    """Bodies among the recordings, as text or as JSON."""
    rows = map(json.loads, (DATA / name).read_text().splitlines())
    bodies = [row[member] for row in rows if member in row]
    return [
        each.encode() if isinstance(each, str) else json.dumps(each).encode() for each in bodies
    ]


BODIES += _recorded("d02_splittable.jsonl", "body") + _recorded("d03_legs.jsonl", "client")
FORM = (
    b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n--b\r\n'
    b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\r\n--b--\r\n'
)
ANSWERS = [
    b'{"model":"old","usage":{"prompt_tokens":3,"completion_tokens":5,"total_tokens":8}}',
    b'data: {"model":"old"}\n\ndata: {"usage":{"prompt_tokens":3}}\r\n\r\ndata: [DONE]\n\n',
    b'event: response.completed\ndata: {"response":{"model":"old","usage":{"input_tokens":3}}}\n\n',
    b'event: message_start\ndata: {"message":{"model":"old","usage":{"input_tokens":1}}}\n\n',
    b'data: {"model":\ndata: "old"}\n\n: ping\n\ndata:{"usage":null}\r\rdata: {"usage":"oops"}\n\n',
    *_recorded("vllm_0.32.0_answers.jsonl", "body"),
]


EVERY = catalog.Rules(parsers=frozenset(catalog.FAMILIES.values()))
CALLS = [
    calls.framed(calls.generate(ids=[1, 2, 300])),
    calls.framed(calls.generate(text="hé", max_tokens=3)),
    calls.framed(calls.embed([1, 2])),
    *(calls.framed(calls.wrapped(body)) for body in BODIES[:8]),
    b"\1\0\0\0\2{}",
    b"\0\xff\xff\xff\xff",
]


def _parse(path: str, kind: str) -> Callable[[bytes], None]:
    headers = {":method": "POST", ":path": path, "content-type": kind}

    def run(body: bytes) -> None:
        with suppress(Refusal):
            parsed = catalog.parse(Arrival(headers=headers, body=body, has_body=True), EVERY)
            parsed.model.encode()  # labels and engines take UTF-8 only
            parsed.cache_salt.encode("utf-8", "surrogatepass")
            assert parsed.output_tokens is None or parsed.output_tokens > 0

    return run


def _apis() -> list[Target]:
    """One for each parser, at the first path that has it, and one for forms."""
    first = {parser: suffix for suffix, parser in reversed(catalog.PARSERS.items())}
    watched = ("epp/request/apis/", "epp/bodies/spans.py")
    apis = [
        Target(
            f"api{suffix.replace('/', '-')}",
            _parse(suffix, "application/grpc" if suffix in catalog.CALLS else "application/json"),
            CALLS if suffix in catalog.CALLS else BODIES,
            watched,
        )
        for suffix in first.values()
    ]
    form = _parse("/v1/audio/transcriptions", "multipart/form-data; boundary=b")
    return [*apis, Target("api-forms", form, [FORM, b"--b--", b""], watched)]


def unfold(data: bytes) -> None:
    """The first octet chooses the coding."""
    coding = ("gzip", "deflate", "br", "")[data[0] % 4] if data else ""
    with suppress(Refusal):
        content = encodings.unfolded(data[1:], coding, UNFOLDED)
        assert len(content) <= UNFOLDED or not coding


def edit(data: bytes) -> None:
    """Spans lie where they should: an edit changes what it names and nothing else."""
    try:
        body = Body.read(data)
    except NotAnObjectError:
        return
    assert body.edited(put={}) == data
    changed = Body.read(body.edited(put={"model": b'"x"'}, drop=("stream",)))
    assert changed.value("model") == b'"x"'
    assert changed.value("stream") is None
    kept = {
        name: bytes(raw) for name, raw in body.fields.items() if name not in ("model", "stream")
    }
    assert {name: bytes(changed.fields[name]) for name in kept} == kept


def rename_model(data: bytes) -> None:
    """A model renamed twice is the second name; without a model nothing changes."""
    new = rewrite.with_model(data, 'a"ä')
    if new is not None:
        again = rewrite.with_model(new, "m")
        assert again == rewrite.with_model(data, "m")


def watch(data: bytes) -> None:
    """What an answer says of its usage does not depend on how its bytes are split."""
    kind, size, body = _split(data)
    whole, cut = ResponseWatch(kind), ResponseWatch(kind)
    whole.feed(body)
    for at in range(0, len(body), size):
        cut.feed(body[at : at + size])
    usage = whole.finish()
    assert usage == cut.finish()
    for count in (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens):
        assert count is None or (type(count) is int and count >= 0)


def put_back(data: bytes) -> None:
    """A name is put back alike however the bytes are split, and no other byte changes."""
    kind, size, body = _split(data)
    whole, cut = Rename('a"sked', "old", kind), Rename('a"sked', "old", kind)
    out = whole.feed(body) + whole.finish()
    parts = [cut.feed(body[at : at + size]) for at in range(0, len(body), size)]
    assert out == b"".join(parts) + cut.finish()
    same = Rename("old", "old", kind)
    assert same.feed(body) + same.finish() == body


def _split(data: bytes) -> tuple[str, int, bytes]:
    """Two octets say which kind of answer it is and how long its pieces are."""
    first, second = data[:1] or b"\0", data[1:2] or b"\0"
    body = data[2:]
    return KINDS[first[0] % len(KINDS)], max(1 + second[0] % 40, len(body) // MOST_PIECES), body


def subset(data: bytes) -> None:
    """A hint chooses among the members and never beyond them."""
    pool = ("10.0.0.1:8000", "[::1]:8000")
    entries = data.decode("utf-8", "replace").split("\n")
    assert len(allowed(pool, entries)) == len(pool)


def headers(data: bytes) -> None:
    """Headers and metadata of a message, as a gateway sends them."""
    with suppress(DecodeError):
        message = pb.ProcessingRequest.FromString(data)
        metadata = message.metadata_context.filter_metadata
        entries = subset_hint(metadata)
        assert entries is None or all(entries)
        served_endpoint(metadata)
        head = answer_head(message.response_headers.headers)
        assert head.status == 0 or 100 <= head.status <= 999 or head.status < 100
        said = hints.read(header_map(message.request_headers.headers))
        assert all(text.isascii() for text in (said.model, said.objective, said.fairness_id))


def relayed(data: bytes) -> None:
    """Requests and answers as the sidecar's relay reads them: the same however they are cut.

    Before them came messages of one kind, so that (after the first few inputs) a template takes
    whole what the parser takes in pieces.
    """
    size, data = 1 + (data[0] if data else 0), data[1:]
    for make in (_primed_for_requests, _primed_for_answers):
        whole, cut = make(), make()
        at_once = _told(whole.feed(data))
        in_pieces = _told(
            [one for at in range(0, len(data), size) for one in cut.feed(data[at : at + size])]
        )
        assert in_pieces[: len(at_once)] == at_once[: len(in_pieces)]


def _primed_for_requests() -> RequestReader:
    reader = RequestReader(LIMITS)
    for _ in range(2):
        reader.feed(USUAL_REQUEST)
    return reader


def _primed_for_answers() -> AnswerReader:
    reader = AnswerReader(LIMITS, method="GET")
    for _ in range(2):
        reader.feed(USUAL_ANSWER)
        reader.begin("GET")
    return reader


def _told(events: Iterable[object]) -> list[object]:
    """What a reader told, with neighbouring data joined, up to the first message that breaks."""
    told: list[object] = []
    for event in events:
        if isinstance(event, Broken | Garbled):
            break
        if isinstance(event, bytes) and told and isinstance(told[-1], bytes):
            told[-1] += event
        elif isinstance(event, Incoming):
            told.append((event.method, event.target, *event.fields, event.http11, event.length))
        elif isinstance(event, Head):
            told.append((event.status, event.reason, *event.fields))
        else:
            told.append(event)
    if told and isinstance(told[-1], bytes):
        told.pop()  # of a body that is not whole, more or less may have come
    return told


_RELAY = tuple(f"sidecar/relay/{name}.py" for name in ("requests", "answers", "templates"))
PARSERS = [
    Target("relay", relayed, MESSAGES, _RELAY),
    *_apis(),
    Target(
        "encodings",
        unfold,
        [b"\0" + gzip.compress(b"{}" * 50), b"\1" + zlib.compress(b"{}"), b"\1{}", b"\2x"],
        ("epp/request/apis/encodings.py",),
    ),
    Target("spans", edit, BODIES, ("epp/bodies/spans.py",)),
    Target("rewrite", rename_model, BODIES, ("epp/request/apis/rewrite.py", "epp/bodies/spans.py")),
    Target("usage", watch, [b"\0\3" + each for each in ANSWERS], ("epp/bodies/usage.py",)),
    Target(
        "rename",
        put_back,
        [bytes((kind, 3)) + each for each in ANSWERS for kind in (0, 1)],
        ("epp/bodies/rename.py", "epp/bodies/walk.py"),
    ),
    Target(
        "subset",
        subset,
        [b"10.0.0.1:8000\n::1", b"[::1]:8000\n::1:8000", b"x"],
        ("epp/request/subset.py",),
    ),
    Target(
        "headers",
        headers,
        [
            envoy.request_headers({"x-gateway-model-name-rewrite": "m"}, subset=["a:1, b", "c"]),
            envoy.response_headers("200", served="10.0.0.1:8000"),
        ],
        ("epp/request/intake.py", "epp/request/hints.py"),
    ),
]
