"""Ask an engine for its own tokens.

Exact tokens come from `/tokenize` of the engine that will compute the prompt: a tokenizer or a
template kept elsewhere drifts, and prefixes stop matching without a sign.
"""

import asyncio
from array import array
from collections.abc import Callable, Sequence
from http import HTTPStatus
from sys import byteorder

import aiohttp
import msgspec

from epp.errors import EppError

MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""Bytes of one answer of `/tokenize`: 2 million tokens and more."""
ATTEMPTS = 2
"""Endpoints to ask when one refuses the connection."""

_REFUSALS = {
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNPROCESSABLE_ENTITY,
}

Fields = tuple[tuple[str, bytes], ...]


class TokenizerError(EppError):
    """No engine gave an answer that could be used."""

    reason = "tokenizer-down"


class TokenizerRefusedError(EppError):
    """The engine will not tokenize this very prompt, and would not serve it either."""

    reason = "tokenizer-refused"


class _Answer(msgspec.Struct):
    tokens: list[int]


_answer = msgspec.json.Decoder(_Answer)


class EngineTokenizer:
    """Client of `/tokenize`. Holds no policy: `Tokens` decides when to ask."""

    def __init__(self, session: aiohttp.ClientSession, address: Callable[[], str | None]) -> None:
        """`address` names a ready endpoint (`ip:port`), another one each time if it can."""
        self._session = session
        self._address = address

    async def __call__(self, model: str, fields: Fields) -> bytes:
        """The body of the engine's answer, to be read by `ids`.

        Raises TokenizerError, or TokenizerRefusedError where only this prompt is at fault.
        """
        body = _body(model, fields)
        for attempt in range(ATTEMPTS):
            address = self._address()
            if address is None:
                raise TokenizerError("nobody is ready to tokenize")
            try:
                return await self._post(f"http://{address}/tokenize", body)
            except aiohttp.ClientConnectorError:
                if attempt + 1 == ATTEMPTS:
                    raise TokenizerError(f"{address} cannot be reached") from None
            except (aiohttp.ClientError, OSError) as error:
                raise TokenizerError(f"{address}: {type(error).__name__}") from error
        raise AssertionError("unreachable")

    async def _post(self, url: str, body: bytes) -> bytes:
        headers = {"content-type": "application/json"}
        async with self._session.post(
            url, data=body, headers=headers, allow_redirects=False
        ) as answer:
            if answer.status in _REFUSALS:
                raise TokenizerRefusedError(f"status {answer.status}")
            if answer.status != HTTPStatus.OK:
                raise TokenizerError(f"status {answer.status} of {url}")
            try:
                await answer.content.readexactly(MAX_ANSWER_BYTES + 1)
            except asyncio.IncompleteReadError as whole:
                return whole.partial
            raise TokenizerError(f"{url} answered more than {MAX_ANSWER_BYTES} bytes")


def _body(model: str, fields: Sequence[tuple[str, bytes]]) -> bytes:
    """The request of `/tokenize`: values are the client's own JSON, names are ours."""
    members = [b'"model":' + msgspec.json.encode(model)]
    members += [b'"' + name.encode() + b'":' + raw for name, raw in fields]
    return b"{" + b",".join(members) + b"}"


def ids(answer: bytes) -> bytes:
    """Token ids of an answer as little-endian uint32. Raises TokenizerError for anything else."""
    try:
        packed = array("I", _answer.decode(answer).tokens)
    except (msgspec.MsgspecError, OverflowError, RecursionError) as error:
        raise TokenizerError("an answer that is not a list of token ids") from error
    if byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
