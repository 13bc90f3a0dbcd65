"""The relay's readers agree with h11, an independent reader of HTTP/1.1, in both directions.

Where they differ, ours is the one that refuses: a proxy that reads more than its neighbours do is
how requests are smuggled.
"""

import itertools
import os
import random
import re
from dataclasses import dataclass, field

import h11
import pytest

from sidecar.http.client import Head
from sidecar.http.headers import RawHeaders
from sidecar.http.incoming import Incoming
from sidecar.http.refusals import HEAD_TOO_LARGE, UNREADABLE
from sidecar.proxy import Limits
from sidecar.relay.answers import GARBLED, AnswerReader
from sidecar.relay.framing import Frame, answer_head, chunk, frame_of, request_head
from sidecar.relay.requests import END, Broken, RequestReader

EVERYDAY, LONG = 2000, 50_000
_CHUNKS = re.compile(rb"(?<=\r\n)(?=[0-9A-Za-z]+\r\n)")
"""Where a chunk may begin."""
Fields = list[tuple[bytes, bytes]]


@dataclass
class Message:
    """One message as a reader understood it."""

    start: tuple[object, ...]
    fields: Fields
    body: bytes = b""
    whole: bool = False


@dataclass
class Read:
    """What a reader made of all bytes of one connection."""

    messages: list[Message] = field(default_factory=list)
    broken: bool = False


def pieces(rng: random.Random, data: bytes) -> list[bytes]:
    """The bytes as a network may cut them, or as whoever wrote them may have written."""
    way = rng.random()
    if way < 0.2:
        return [data]
    if way < 0.4:
        return [piece for piece in _CHUNKS.split(data) if piece]
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(1, 8)))
    edges = [0, *cuts, len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges) if a < b]


# --- requests


def ours_of_requests(cut: list[bytes]) -> Read:
    reader, read = RequestReader(Limits()), Read()
    for data in cut:
        for event in reader.feed(data):
            if isinstance(event, Incoming):
                start = (event.method.encode(), event.target.encode())
                read.messages.append(Message(start, lowered(event.fields)))
            elif isinstance(event, Broken):
                read.broken = True
            elif event is END:
                read.messages[-1].whole = True
            else:
                assert isinstance(event, bytes)
                read.messages[-1].body += event
    return read


def h11_of_requests(cut: list[bytes]) -> Read:
    connection, read = h11.Connection(h11.SERVER), Read()
    try:
        for data in cut:
            connection.receive_data(data)
            while True:
                event = connection.next_event()
                if event is h11.NEED_DATA or isinstance(event, h11.ConnectionClosed):
                    break
                if event is h11.PAUSED:
                    if not goes_on(connection):
                        return read
                elif isinstance(event, h11.Request):
                    read.messages.append(Message((event.method, event.target), list(event.headers)))
                elif isinstance(event, h11.Data):
                    read.messages[-1].body += bytes(event.data)
                elif isinstance(event, h11.EndOfMessage):
                    read.messages[-1].whole = True
    except h11.RemoteProtocolError:
        read.broken = True
    return read


def goes_on(connection: h11.Connection) -> bool:
    """Answers the request, and says whether another one may follow."""
    if connection.their_state is not h11.DONE or connection.our_state is not h11.SEND_RESPONSE:
        return False
    connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
    connection.send(h11.EndOfMessage())
    if connection.our_state is not h11.DONE:
        return False
    connection.start_next_cycle()
    return True


def lowered(fields: RawHeaders) -> Fields:
    """As h11 spells them."""
    found = [(name.lower(), value) for name, value in fields]
    return [(n, v.lower() if n == b"transfer-encoding" else v) for n, v in found]


def some_body(rng: random.Random) -> bytes:
    return bytes(rng.choice(b'ab\r\n0:{}" ') for _ in range(rng.choice((0, 1, 7, 300))))


def chunked(rng: random.Random, body: bytes) -> bytes:
    out, at = b"", 0
    while at < len(body):
        size = rng.randrange(1, len(body) - at + 1)
        extension = rng.choice((b"", b"", b";a=b", b";q"))
        out += b"%x%b\r\n%b\r\n" % (size, extension, body[at : at + size])
        at += size
    trailers = rng.choice((b"", b"", b"X-Sum: 1\r\n"))
    return out + b"0\r\n" + trailers + b"\r\n"


def a_request(rng: random.Random) -> bytes:
    method = rng.choice((b"GET", b"POST", b"POST", b"HEAD", b"OPTIONS", b"DELETE", b"PUT"))
    target = rng.choice((b"/", b"/v1/completions", b"/a%20b?x=1&x=2", b"//x", b"/?", b"/a?b?c"))
    fields = [(b"Host", b"gateway.example")]
    for _ in range(rng.randrange(6)):
        name = rng.choice((b"X-A", b"accept", b"AUTHORIZATION", b"x-request-id", b"Cookie"))
        fields.append((name, rng.choice((b"1", b"a b", b"", b"\xc3\xa9", b"x" * 200, b"a,b"))))
    body = some_body(rng)
    kind = rng.randrange(3)
    if kind == 0:
        body, wire = b"", b""
    elif kind == 1:
        fields.append((rng.choice((b"Content-Length", b"content-length")), b"%d" % len(body)))
        wire = body
    else:
        coding = rng.choice((b"chunked", b"Chunked"))
        fields.append((b"Transfer-Encoding", coding))
        wire = chunked(rng, body)
    rng.shuffle(fields)
    lines = b"".join(b"%b:%b%b\r\n" % (n, rng.choice((b" ", b"", b"\t")), v) for n, v in fields)
    return b"%b %b HTTP/1.1\r\n%b\r\n%b" % (method, target, lines, wire)


def damaged(rng: random.Random, data: bytes) -> bytes:
    """The bytes after one accident, or one attack."""
    at = rng.randrange(len(data))
    what = rng.randrange(6)
    if what == 0:
        return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    if what == 1:
        return data[:at] + data[at + 1 :]
    if what == 2:
        return data[:at] + rng.choice((b"\r\n", b"\n", b"\r", b" ", b"\0", b":")) + data[at:]
    extra = rng.choice(
        (
            b"Content-Length: 3\r\n",
            b"Transfer-Encoding: chunked\r\n",
            b"Transfer-Encoding: identity\r\n",
            b"Transfer-Encoding: gzip, chunked\r\n",
            b"Content-Length: 1, 1\r\n",
            b"Content-Length: +1\r\n",
            b"Host: other\r\n",
            b" folded\r\n",
            b"X-A : 1\r\n",
        )
    )
    line = data.find(b"\r\n") + 2
    return data[:line] + extra + data[line:] if what < 5 else data[:at]


def check_requests(count: int, seed: int) -> tuple[int, int]:
    rng = random.Random(seed)
    refused = agreed = 0
    for _ in range(count):
        sound = rng.random() < 0.5
        data = b"".join(a_request(rng) for _ in range(rng.randrange(1, 4)))
        if not sound:
            data = damaged(rng, data)
        cut = pieces(rng, data)
        ours, other = ours_of_requests(cut), h11_of_requests(cut)
        if sound:
            assert not ours.broken, data
            assert not other.broken, data
        if ours.broken:
            refused += 1
            mine = [one for one in ours.messages if one.whole]
            assert mine == other.messages[: len(mine)], data
            continue
        if other.broken:
            # h11 is stricter in few things, none of which another reader could frame differently.
            assert ours.messages[: len(other.messages)][:-1] == other.messages[:-1], data
            continue
        agreed += 1
        assert ours.messages == other.messages, data
    return agreed, refused


# --- answers


def ours_of_answer(cut: list[bytes], method: str) -> Read:
    reader, read = AnswerReader(Limits(), method=method), Read()

    def take(event: object) -> None:
        if isinstance(event, Head):
            read.messages.append(Message((event.status,), lowered(event.fields)))
        elif event is GARBLED:
            read.broken = True
        elif event is END:
            read.messages[-1].whole = True
        elif event is not None:
            assert isinstance(event, bytes)
            read.messages[-1].body += event

    for data in cut:
        size = reader.chunk(data)
        if size:
            content = data[-2 - size : -2]
            assert data.lower() == chunk(content).lower(), "it may go out as it came"
            take(content)
            continue
        for event in reader.feed(data):
            take(event)
    take(reader.eof())
    return read


def h11_of_answer(cut: list[bytes], method: str) -> Read:
    connection, read = h11.Connection(h11.CLIENT), Read()
    connection.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
    connection.send(h11.EndOfMessage())
    try:
        for data in [*cut, b""]:
            connection.receive_data(data)
            while True:
                event = connection.next_event()
                if event is h11.NEED_DATA or event is h11.PAUSED:
                    break
                if isinstance(event, h11.Response):
                    read.messages.append(Message((event.status_code,), list(event.headers)))
                elif isinstance(event, h11.Data):
                    read.messages[-1].body += bytes(event.data)
                elif isinstance(event, h11.EndOfMessage):
                    read.messages[-1].whole = True
                    return read
                elif isinstance(event, h11.ConnectionClosed):
                    return read
    except h11.RemoteProtocolError:
        read.broken = True
    return read


def an_answer(rng: random.Random) -> tuple[bytes, str]:
    status = rng.choice((200, 200, 201, 204, 304, 400, 404, 500, 503))
    method = rng.choice(("GET", "POST", "HEAD"))
    fields = [(b"Content-Type", b"application/json")]
    names, values = (b"X-A", b"Set-Cookie", b"server"), (b"1", b"", b"a b")
    fields += [(rng.choice(names), rng.choice(values)) for _ in range(rng.randrange(4))]
    body = some_body(rng)
    kind = rng.randrange(3)
    bodiless = method == "HEAD" or status in {204, 304}
    if kind == 0 and not bodiless:
        wire = body
    elif kind == 1 or status == 204:
        if status != 204:
            fields.append((b"Content-Length", b"%d" % len(body)))
        wire = b"" if bodiless else body
    else:
        fields.append((b"Transfer-Encoding", b"chunked"))
        wire = b"" if bodiless else chunked(rng, body)
    early = rng.choice((b"", b"", b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"))
    lines = b"".join(b"%b: %b\r\n" % one for one in fields)
    return early + b"HTTP/1.1 %d Some Reason\r\n%b\r\n%b" % (status, lines, wire), method


def check_answers(count: int, seed: int) -> tuple[int, int]:
    rng = random.Random(seed)
    refused = agreed = 0
    for _ in range(count):
        sound = rng.random() < 0.5
        data, method = an_answer(rng)
        if not sound:
            data = damaged(rng, data)
        cut = pieces(rng, data)
        ours, other = ours_of_answer(cut, method), h11_of_answer(cut, method)
        if sound:
            assert not ours.broken, data
            assert not other.broken, data
        if ours.broken:
            refused += 1
            assert not (ours.messages and ours.messages[-1].whole), data
            continue
        if other.broken:
            continue
        agreed += 1
        assert ours.messages == other.messages, data
    return agreed, refused


SEED = int(os.environ.get("RELAY_SEED", "7"))


def test_requests_are_read_as_h11_reads_them() -> None:
    agreed, refused = check_requests(EVERYDAY, SEED)
    assert agreed > EVERYDAY // 2
    assert refused > EVERYDAY // 20


def test_answers_are_read_as_h11_reads_them() -> None:
    agreed, refused = check_answers(EVERYDAY, SEED)
    assert agreed > EVERYDAY // 2
    assert refused > EVERYDAY // 20


@pytest.mark.long
@pytest.mark.timeout(900)
def test_fifty_thousand_exchanges_are_read_as_h11_reads_them() -> None:
    assert check_requests(LONG, SEED + 1)[0] > LONG // 2
    assert check_answers(LONG, SEED + 2)[0] > LONG // 2


def test_h11_reads_what_we_write_to_engines() -> None:
    rng = random.Random(SEED)
    for _ in range(EVERYDAY // 4):
        body, is_chunked = some_body(rng), rng.random() < 0.5
        fields = [(b"X-A", b"1"), (b"Cookie", b"a=1")]
        if not is_chunked:
            fields.append((b"content-length", b"%d" % len(body)))
        head = request_head("POST", "/x?y", fields, host="127.0.0.1:1", chunked=is_chunked)
        wire = body
        if is_chunked:
            wire = (chunk(body) if body else b"") + b"0\r\n\r\n"
        (message,) = h11_of_requests([head + wire]).messages
        assert message.start == (b"POST", b"/x?y")
        assert (message.body, message.whole) == (body, True)


def test_h11_reads_what_we_write_to_clients() -> None:
    rng = random.Random(SEED)
    for _ in range(EVERYDAY // 4):
        body, method = some_body(rng), rng.choice(("GET", "HEAD"))
        status = rng.choice((200, 204, 304, 404))
        length = rng.choice((None, len(body)))
        frame = frame_of(status, method, length, http11=True)
        head = answer_head(
            status,
            "Fine",
            [(b"Content-Type", b"text/plain"), (b"Content-Length", b"9")],
            frame=frame,
            length=length,
            date=b"Date: x",
            close=False,
        )
        wire = {
            Frame.NONE: b"",
            Frame.LENGTH: body,
            Frame.CHUNKS: (chunk(body) if body else b"") + b"0\r\n\r\n",
        }[frame]
        (message,) = h11_of_answer([head + wire], method).messages
        assert message.whole
        assert message.body == (b"" if frame is Frame.NONE else body)


def test_a_head_beyond_a_limit_is_told_so_and_one_at_it_is_read() -> None:
    limits = Limits(max_header_bytes=400, max_headers=8)
    start = b"GET / HTTP/1.1\r\nHost: x\r\n"
    for most, over in (
        (b"x: %b\r\n" % (b"a" * 399), b"x: %b\r\n" % (b"a" * 400)),
        (b"x: a\r\n" * 7, b"x: a\r\n" * 8),
    ):
        assert isinstance(RequestReader(limits).feed(start + most + b"\r\n")[0], Incoming)
        assert RequestReader(limits).feed(start + over + b"\r\n")[-1] == Broken(HEAD_TOO_LARGE)
    unended = start + b"x: " + b"a" * 2000
    assert RequestReader(limits).feed(unended) == [Broken(HEAD_TOO_LARGE)]
    assert RequestReader(limits).feed(b"GET /\x00\r\n\r\n") == [Broken(UNREADABLE)]


def test_a_long_body_is_no_overhead_however_its_bytes_come() -> None:
    body = b"x" * 700_000
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    data = head + body + b"GET /next HTTP/1.1\r\nHost: x\r\n\r\n"
    for size in (1 << 14, 1 << 18, len(data)):
        read = ours_of_requests([data[at : at + size] for at in range(0, len(data), size)])
        assert not read.broken
        assert [len(message.body) for message in read.messages] == [700_000, 0]


def test_chunks_that_are_hardly_anything_but_framing_are_refused() -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    padded = b"1;" + b"x" * 4000 + b"\r\na\r\n"
    assert ours_of_requests([head, *[padded] * 100]).broken
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert ours_of_answer([answer, *[padded] * 100], "GET").broken
    fine = b"1\r\na\r\n"
    assert not ours_of_requests([head, *[fine] * 100_000]).broken


HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "data",
    [
        b"0x5\r\nhello\r\n",
        b"+5\r\nhello\r\n",
        b"1_0\r\n0123456789abcdef\r\n",
        b"05\r\nhello\r\n",
        b" 5\r\nhello\r\n",
        b"5;a=b\r\nhello\r\n",
        b"g\r\nhello\r\n",
        b"5\r\nhello\r",
        b"5\r\nhell\r\n",
        b"5\r\nhelloo\r\n",
        b"5\r\nhello\r\n5\r\nhello\r\n",
        b"5\r\nhello\r\n0\r\n\r\n",
        b"0\r\n\r\n",
        b"\r\n",
        b"5hello",
    ],
)
def test_what_is_not_exactly_one_chunk_as_we_write_it_is_for_the_parser(data: bytes) -> None:
    reader = AnswerReader(Limits())
    reader.feed(HEAD)
    assert reader.chunk(b"5\r\nhello\r\n") == 5
    assert reader.chunk(b"A\r\n0123456789\r\n") == 10
    assert reader.chunk(data) == 0


@pytest.mark.parametrize(
    "begun", [b"", HEAD[:-1], HEAD + b"6\r\nab", HEAD + b"5\r\nhello\r", HEAD + b"5"]
)
def test_a_chunk_begins_only_between_two_chunks(begun: bytes) -> None:
    reader = AnswerReader(Limits())
    reader.feed(begun)
    assert reader.chunk(b"5\r\nhello\r\n") == 0


def test_chunks_that_went_by_leave_the_reader_where_it_was() -> None:
    reader = AnswerReader(Limits())
    reader.feed(HEAD + b"3\r\nabc\r\n")
    assert reader.chunk(b"5\r\nhello\r\n") == 5
    assert reader.feed(b"2\r\nd") == [b"d"]
    assert reader.chunk(b"5\r\nhello\r\n") == 0, "it stands inside a chunk"
    assert reader.feed(b"e\r\n0\r\n\r\n") == [b"e", END]
    assert reader.reusable
