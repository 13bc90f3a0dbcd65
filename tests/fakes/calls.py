"""gRPC calls as clients send them, written octet by octet from the engines' own field numbers."""

from collections.abc import Sequence


def framed(data: bytes, *, flag: int = 0) -> bytes:
    """The body of a call that has one message."""
    return bytes((flag,)) + len(data).to_bytes(4) + data


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def octets(field: int, value: bytes) -> bytes:
    """A text, a message or packed numbers."""
    return varint(field << 3 | 2) + varint(len(value)) + value


def tokenized(ids: Sequence[int]) -> bytes:
    """vLLM's `TokenizedInput`, whose text is for people."""
    return octets(1, b"as text") + octets(2, b"".join(map(varint, ids)))


def generate(
    *,
    ids: Sequence[int] | None = None,
    text: str | None = None,
    max_tokens: int | None = None,
    more: bytes = b"",
) -> bytes:
    """vLLM's `GenerateRequest`."""
    sampling = octets(10, b"stop") + number(15, 1)
    if max_tokens is not None:
        sampling += number(8, max_tokens)
    call = octets(1, b"request-1")
    call += b"" if ids is None else octets(2, tokenized(ids))
    call += b"" if text is None else octets(3, text.encode())
    return call + octets(4, sampling) + number(5, 1) + more


def embed(ids: Sequence[int]) -> bytes:
    """vLLM's `EmbedRequest`."""
    return octets(1, b"request-1") + octets(2, tokenized(ids))


def wrapped(body: bytes) -> bytes:
    """Vertex AI's `ChatCompletionsRequest`, `RawPredictRequest` or `StreamRawPredictRequest`."""
    http = octets(1, b"application/json") + octets(2, body)
    return octets(1, b"projects/p/locations/l/endpoints/e") + octets(2, http)
