"""Compressed bodies are unfolded within bounds, to be read; what cannot be is refused by name."""

import gzip
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.errors import BadRequest, TooLarge, UnsupportedMedia
from epp.request.apis import catalog
from epp.request.apis.encodings import MAX_MEMBERS, MAX_RATIO, coding, unfolded
from epp.request.apis.prompt import TextPrompt
from tests.fakes.desk import ask, post

BODY = b'{"model":"m","prompt":"hello"}'


def _raw_deflate(content: bytes) -> bytes:
    writer = zlib.compressobj(wbits=-15)
    return writer.compress(content) + writer.flush()


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("gzip", gzip.compress(BODY, mtime=0)),
        ("X-GZip", gzip.compress(BODY, mtime=0)),
        ("identity, gzip", gzip.compress(BODY, mtime=0)),
        ("deflate", zlib.compress(BODY)),
        ("deflate", _raw_deflate(BODY)),
        ("identity", BODY),
        (" , ", BODY),
    ],
)
def test_a_compressed_prompt_is_scored_like_a_plain_one(name: str, body: bytes) -> None:
    parsed, plain = (
        catalog.parse(post(body, headers={"content-encoding": name})),
        catalog.parse(post(BODY)),
    )
    assert isinstance(parsed.prompt, TextPrompt)
    assert isinstance(plain.prompt, TextPrompt)
    assert parsed.prompt.tokenize == plain.prompt.tokenize is not None
    alike = replace(parsed.prompt, asked=plain.prompt.asked)
    assert replace(parsed, prompt=alike) == plain


@pytest.mark.parametrize("name", ["zstd", "br", "compress", "gzip, gzip", "br, gzip", "x"])
def test_a_coding_that_nobody_here_knows_is_415(name: str) -> None:
    with pytest.raises(UnsupportedMedia, match="gzip, deflate or identity") as caught:
        catalog.parse(post(BODY, headers={"content-encoding": name}))
    assert caught.value.status == 415


@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/primary-gateway-test", "/sleep"])
def test_what_is_not_read_passes_in_any_coding(path: str) -> None:
    headers = {"content-encoding": "zstd", "content-type": "multipart/form-data; boundary=x"}
    assert catalog.parse(post(b"(\xb5/\xfd", path=path, headers=headers)).prompt is None


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("gzip", BODY),
        ("gzip", gzip.compress(BODY, mtime=0)[:-1]),
        ("gzip", gzip.compress(BODY, mtime=0)[:20]),
        ("gzip", gzip.compress(BODY, mtime=0) + b"more"),
        ("gzip", gzip.compress(BODY, mtime=0)[:-8] + bytes(8)),
        ("deflate", b"\xff\xff"),
        ("deflate", b"x"),
        ("deflate", gzip.compress(BODY, mtime=0)),
    ],
)
def test_a_body_that_is_not_what_it_says_is_400(name: str, body: bytes) -> None:
    with pytest.raises(BadRequest, match="content-encoding"):
        catalog.parse(post(body, headers={"content-encoding": name}))


def test_members_of_one_file_are_read_as_one_and_padding_is_none() -> None:
    body = gzip.compress(BODY[:9]) + gzip.compress(BODY[9:]) + bytes(100)
    assert unfolded(body, "gzip", len(BODY)) == BODY


def test_thousands_of_members_are_refused_before_they_cost_anything() -> None:
    with pytest.raises(BadRequest, match="members"):
        unfolded(gzip.compress(b"") * (MAX_MEMBERS + 1), "gzip", 10)


@given(st.binary(max_size=100), st.integers(0, 120), st.sampled_from(["gzip", "deflate"]))
def test_no_more_than_the_limit_is_ever_unfolded(content: bytes, limit: int, name: str) -> None:
    body = gzip.compress(content) if name == "gzip" else zlib.compress(content)
    if len(content) <= limit:
        assert unfolded(body, name, limit) == content
    else:
        with pytest.raises(TooLarge):
            unfolded(body, name, limit)


def test_the_limit_counts_all_members() -> None:
    with pytest.raises(TooLarge):
        unfolded(gzip.compress(b"abc") * 3, "gzip", 8)
    assert unfolded(gzip.compress(b"abc") * 3, "gzip", 9) == b"abc" * 3


def test_a_compressed_body_counts_as_the_work_that_it_may_be() -> None:
    rules = catalog.Rules(max_body_bytes=1_000_000)
    plain, packed = post(ask()), post(b"x" * 100, headers={"content-encoding": "gzip"})
    assert catalog.work_bytes(plain, rules) == len(plain.body)
    assert catalog.work_bytes(packed, rules) == 100 * MAX_RATIO
    large = post(b"x" * 10_000, headers={"content-encoding": "gzip"})
    assert catalog.work_bytes(large, rules) == 1_000_000


def test_a_coding_is_known_by_its_name_alone() -> None:
    assert coding("GZIP") == "gzip"
    assert coding("identity , Br") == "br"
    assert coding("") == ""
