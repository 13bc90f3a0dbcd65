"""What is left of a reader when its connection is gone."""

import gc
from collections.abc import Callable

import pytest

from sidecar.proxy import Limits
from sidecar.relay.answers import AnswerReader
from sidecar.relay.requests import RequestReader

REQUEST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def readers() -> int:
    return sum(isinstance(one, RequestReader | AnswerReader) for one in gc.get_objects())


@pytest.mark.parametrize(
    ("make", "data"), [(RequestReader, REQUEST), (AnswerReader, ANSWER), (AnswerReader, ANSWER[:9])]
)
def test_a_reader_that_was_dropped_waits_for_no_collector(
    make: Callable[[Limits], RequestReader | AnswerReader], data: bytes
) -> None:
    gc.collect()
    gc.disable()
    try:
        before = readers()
        reader = make(Limits())
        reader.feed(data)
        assert readers() == before + 1
        reader.drop()
        assert reader.feed(data) == []
        del reader
        assert readers() == before
    finally:
        gc.enable()
