"""A head that is read by a template is one that the parser reads, and reads alike."""

import random
from collections.abc import Callable, Iterable
from typing import Any

import httptools
import pytest

from sidecar.http.client import Head
from sidecar.http.incoming import Incoming
from sidecar.proxy import Limits
from sidecar.relay import templates
from sidecar.relay.answers import AnswerReader
from sidecar.relay.requests import RequestReader

ROUNDS = 1500
LIMITS = Limits(max_header_bytes=512, max_headers=8)
NAMES = (b"Host", b"accept", b"X-Request-Id", b"content-type", b"x-100%", b"a.b", b"Date")
SOUND = (b"a", b"a b", b"application/json", b"\xc3\xa9", b"x" * 50, b"1:2", b"a\tb", b"[x](y)")
ODD = (b"", b" a", b"a ", b"a\t", b"\ta", b"a\rb", b"a\nb", b"a\0b", b"a\x7fb", b"x" * 600,
       b"a\r\nX: b", b"a\r\n b", b"a\x0cb", b"\x0ba")  # fmt: skip
LENGTHS = (b"0", b"+2", b"-2", b"02", b" 2", b"2 ", b"0x2", b"2,2", b"1_0", b"9" * 20, b"\xb2")
OPTIONS = (b"keep-alive", b"Keep-Alive", b"KEEP-ALIVE", b"close", b"upgrade", b"keep-alive, x", b"")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first head that the parser takes makes a template."""
    monkeypatch.setattr(templates, "USES", 1)


class Taken:
    """How many messages were read without the parser, which a template does only."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.heads = 0
        self._parsed = 0
        for name in ("HttpRequestParser", "HttpResponseParser"):
            monkeypatch.setattr(httptools, name, self._counting(getattr(httptools, name)))

    def feed(self, reader: RequestReader | AnswerReader, data: bytes) -> list[Any]:
        before = self._parsed
        events: list[Any] = list(reader.feed(data))
        self.heads += bool(events) and self._parsed == before
        return events

    def _counting(self, kind: Callable[[object], Any]) -> Callable[[object], Any]:
        taken = self

        class Counting:
            def __init__(self, protocol: object) -> None:
                self._parser = kind(protocol)

            def feed_data(self, data: bytes) -> None:
                taken._parsed += 1
                self._parser.feed_data(data)

            def __getattr__(self, name: str) -> Any:
                return getattr(self._parser, name)

        return Counting


def parsed(reader: RequestReader | AnswerReader, data: bytes) -> list[object]:
    """What the parser reads: a head that comes in two pieces is no template's."""
    return [*reader.feed(data[:1]), *reader.feed(data[1:])]


def told(events: Iterable[object]) -> list[object]:
    """What a reader told, with neighbouring data joined."""
    out: list[object] = []
    for event in events:
        if isinstance(event, Incoming):
            kept = (event.keep_alive, event.has_body, event.length, event.http11)
            out.append((event.method, event.target, tuple(event.fields), kept))
        elif isinstance(event, Head):
            out.append((event.status, event.reason, tuple(event.fields), event.content))
        elif isinstance(event, bytes) and out and isinstance(out[-1], bytes):
            out[-1] += event
        else:
            out.append(event)
    return out


def some_value(rng: random.Random, name: bytes) -> bytes:
    if name.lower() == b"connection":
        return rng.choice(OPTIONS)
    return rng.choice(ODD) if rng.random() < 0.04 else rng.choice(SOUND)


def a_message(rng: random.Random, start: bytes, names: list[bytes]) -> bytes:
    body = rng.choice((b"", b"{}", b"GET / HTTP/1.1\r\n\r\n"))
    lines = []
    for name in names:
        if name.lower() == b"content-length":
            length = rng.choice(LENGTHS) if rng.random() < 0.05 else b"%d" % len(body)
            lines.append(name + b": " + length)
        else:
            spelled = name.swapcase() if rng.random() < 0.01 else name
            gap = b": " if rng.random() < 0.99 else rng.choice((b":", b" : ", b":\t"))
            lines.append(spelled + gap + some_value(rng, name))
    if rng.random() < 0.02:
        rng.shuffle(lines)
    end = b"\r\n" if rng.random() < 0.98 else b"\n"
    head = end.join((start, *lines, b"", b""))
    if b"content-length" not in (name.lower() for name in names):
        body = b""
    message = head + body
    what = rng.random()
    if what < 0.02:
        return message[:-1]
    if what < 0.04:
        return message + rng.choice((b"\r\n", b"x", b"\0", message))
    if what < 0.06:
        at = rng.randrange(len(message))
        return message[:at] + bytes((rng.randrange(256),)) + message[at + 1 :]
    return message


def some_names(rng: random.Random) -> list[bytes]:
    names = [b"Host", *rng.sample(NAMES[1:], rng.randrange(4))]
    if rng.random() < 0.8:
        names.append(rng.choice((b"Content-Length", b"content-length")))
    if rng.random() < 0.2:
        names.append(rng.choice((b"Connection", b"connection")))
    if rng.random() < 0.1:
        names.append(rng.choice((b"Upgrade", b"Expect", b"Transfer-Encoding", b"TE")))
    rng.shuffle(names)
    return names


def a_start(rng: random.Random) -> bytes:
    method = rng.choice((b"POST",) * 20 + (b"GET", b"HEAD", b"CONNECT", b"PRI"))
    target = rng.choice((b"/v1/completions",) * 20 + (b"/", b"//a", b"/a?b", b"*", b"/a b", b"a:1"))
    version = rng.choice((b"1.1",) * 40 + (b"1.0", b"2.0", b"1.1 "))
    return b"%b %b HTTP/%b" % (method, target, version)


def test_repeated_requests_are_read_as_the_parser_reads_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng, taken = random.Random(11), Taken(monkeypatch)
    for _ in range(ROUNDS):
        names = some_names(rng)
        pieces = [a_message(rng, a_start(rng), names) for _ in range(6)]
        mine, plain = RequestReader(LIMITS), RequestReader(LIMITS)
        expected = told(event for piece in pieces for event in parsed(plain, piece))
        events = told(event for piece in pieces for event in taken.feed(mine, piece))
        assert events == expected, pieces
        assert mine.begun == plain.begun
    assert taken.heads > ROUNDS // 2


def test_repeated_answers_are_read_as_the_parser_reads_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng, taken = random.Random(12), Taken(monkeypatch)
    for _ in range(ROUNDS):
        names = some_names(rng)
        start = rng.choice((b"HTTP/1.1 200 OK",) * 5 + (b"HTTP/1.1 404 Not (Found)",
                           b"HTTP/1.1 204 x", b"HTTP/1.0 200 OK", b"HTTP/1.1 200"))  # fmt: skip
        mine, plain = AnswerReader(LIMITS), AnswerReader(LIMITS)
        for _ in range(6):
            piece = a_message(rng, start, names)
            method = rng.choice(("POST",) * 9 + ("HEAD",))
            mine.begin(method)
            plain.begin(method)
            expected = told(parsed(plain, piece))
            assert told(taken.feed(mine, piece)) == expected, piece
            seen: list[tuple[Any, ...]] = [
                (reader.over, reader.seen, reader.headed, reader.reusable)
                for reader in (mine, plain)
            ]
            assert seen[0] == seen[1], piece
            if not mine.reusable:
                break
    assert taken.heads > ROUNDS // 4


def test_what_stands_before_a_head_keeps_it_from_the_template() -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n"
    for begun in (b"P", b"X", b"POST / HTTP/1.1\r\nHost: y\r\nX: ", head):
        reader = RequestReader(LIMITS)
        reader.feed(head + b"{}")
        reader.feed(begun)
        fresh = RequestReader(LIMITS)
        fresh.feed(begun)
        assert told(reader.feed(head + b"{}")) == told(fresh.feed(head + b"{}")), begun


def test_a_pattern_is_made_only_of_heads_that_come_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "USES", 3)
    taken = Taken(monkeypatch)
    reader = RequestReader(LIMITS)
    for n in range(5):
        taken.feed(reader, b"GET /%d HTTP/1.1\r\nHost: x%d\r\nx-often: 1\r\n\r\n" % (n, n))
    assert taken.heads == 2


def test_many_or_long_names_make_no_template(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Taken(monkeypatch)
    reader = RequestReader(Limits())
    for names in ([b"x%d" % n for n in range(60)], [b"x" * 2000]):
        lines = b"".join(name + b": 1\r\n" for name in names)
        for _ in range(3):
            head = b"GET / HTTP/1.1\r\nHost: x\r\n%b\r\n" % lines
            assert len(taken.feed(reader, head)) == 2
    assert taken.heads == 0


def test_a_head_longer_than_a_field_may_be_is_the_parsers(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Taken(monkeypatch)
    reader = RequestReader(LIMITS)
    for size in (10, 200, 400, 200):
        head = b"GET / HTTP/1.1\r\nHost: x\r\nX-A: %b\r\nX-B: %b\r\n\r\n"
        assert len(taken.feed(reader, head % (b"a" * size, b"b" * size))) == 2
    assert taken.heads == 2
