"""What becomes of request bodies before an engine sees them."""

import gzip
import zlib

import pytest

from sidecar.http import refusals
from sidecar.http.intake import Store, is_form, without_params
from sidecar.http.refusals import LegError
from sidecar.proxy import Limits
from tests.fakes.handoffs import rows

LIMITS = Limits(max_body_bytes=10_000)
NAMING = b'{"a":1,"kv_transfer_params":{}}'


async def refusal(body: bytes, encoding: str = "") -> object:
    with pytest.raises(LegError) as caught:
        await without_params(body, encoding, LIMITS)
    return caught.value.refused


@pytest.mark.parametrize("row", rows("spellings.jsonl"), ids=lambda row: row["name"])
async def test_every_spelling_is_taken_out_and_nothing_else(row: dict[str, str]) -> None:
    assert await without_params(row["body"].encode(), "", LIMITS) == row["cleaned"].encode()


@pytest.mark.parametrize("row", rows("spellings.jsonl"), ids=lambda row: row["name"])
@pytest.mark.parametrize("coding", ["utf-16", "utf-16-le", "utf-32", "utf-32-be"])
async def test_no_spelling_passes_in_another_encoding_of_text(
    row: dict[str, str], coding: str
) -> None:
    body = row["body"].removeprefix("\ufeff").encode(coding)
    if "kv_transfer_params" in row["body"] or "\\u00" in row["body"]:
        assert await refusal(body) is refusals.BAD_JSON
    else:
        assert await without_params(body, "", LIMITS) is body


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"hello", b"\0\1\2" * 999, bytes(range(256)), b'{"a":"\0"}']
)
async def test_what_cannot_name_them_passes_as_the_same_object(body: bytes) -> None:
    assert await without_params(body, "", LIMITS) is body


async def test_a_large_body_is_cleaned_all_the_same() -> None:
    body = b'{"a":"' + b"x" * 200_000 + b'","kv_transfer_params":1}'
    assert await without_params(body, "", LIMITS) == b'{"a":"' + b"x" * 200_000 + b'"}'


@pytest.mark.parametrize(
    ("coding", "encode"),
    [("gzip", gzip.compress), ("GZIP", gzip.compress), ("deflate", zlib.compress)],
)
async def test_encoded_bodies_pass_unless_they_name_them(coding: str, encode: object) -> None:
    assert callable(encode)
    harmless = encode(b'{"prompt":"hi"}')
    assert await without_params(harmless, coding, LIMITS) is harmless
    assert await refusal(encode(NAMING), coding) is refusals.HIDDEN_PARAMS


async def test_encoded_bodies_that_cannot_be_looked_into_are_refused() -> None:
    assert await refusal(b"\x1b\x00", "br") is refusals.BAD_ENCODING
    assert await refusal(b"no gzip", "gzip") is refusals.BAD_ENCODING
    assert await refusal(gzip.compress(b"{}"), "gzip, gzip") is refusals.BAD_ENCODING
    halves = gzip.compress(NAMING[:12]) + gzip.compress(NAMING[12:])
    assert await refusal(halves, "gzip") is refusals.BAD_ENCODING
    assert await refusal(gzip.compress(b"{}" * 99)[:-9], "gzip") is refusals.BAD_ENCODING


async def test_a_small_body_that_grows_beyond_the_limit_is_refused() -> None:
    at_limit = gzip.compress(b" " * LIMITS.max_body_bytes)
    assert await without_params(at_limit, "gzip", LIMITS) is at_limit
    bomb = gzip.compress(b" " * (LIMITS.max_body_bytes + 1))
    assert await refusal(bomb, "gzip") is refusals.TOO_LARGE


async def test_a_coding_that_is_a_lie_hides_nothing() -> None:
    assert await refusal(NAMING, "gzip") is refusals.BAD_ENCODING
    assert await without_params(NAMING, "identity", LIMITS) == b'{"a":1}'


@pytest.mark.parametrize(
    ("values", "form"),
    [
        (["multipart/form-data; boundary=x"], True),
        (["Multipart/Form-Data"], True),
        (["application/json"], False),
        (["multipart/form-data", "application/json"], False),
        (["multipart/json"], False),
        (["application/x-www-form-urlencoded"], False),
        (["text/plain"], False),
        ([], False),
    ],
)
def test_only_forms_pass_unread(values: list[str], form: bool) -> None:
    assert is_form(values) is form


def test_what_is_held_together_is_bounded_and_given_back() -> None:
    store = Store(Limits(max_held_bytes=100))
    with store.share() as first, store.share() as second:
        first.grow(60)
        second.grow(40)
        with pytest.raises(LegError) as caught:
            second.grow(1)
        assert caught.value.refused is refusals.TOO_MUCH
    assert store.held_bytes == 0
