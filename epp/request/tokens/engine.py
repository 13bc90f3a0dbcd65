"""Ask an engine for its own tokens.

Exact tokens come from the engine that will compute the prompt, or from a server that renders as it
does: a tokenizer or a template kept elsewhere drifts, and prefixes stop matching without a sign.
Two kinds of endpoints tell: `/tokenize`, and those that render a whole request (`rendering`).
"""

import asyncio
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from sys import byteorder

import aiohttp
import msgspec

from epp.errors import EppError
from epp.request.apis.features import media_of
from epp.request.apis.prompt import Fields
from epp.request.apis.reading import ABSENT, given
from epp.state.blocks import Media

TOKENIZE = "/tokenize"
MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""Bytes of one answer: 2 million tokens and more."""
ATTEMPTS = 2
"""Endpoints to ask when one refuses the connection."""

_REFUSALS = {
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNPROCESSABLE_ENTITY,
}
_ABSENT = {
    HTTPStatus.FORBIDDEN,
    HTTPStatus.NOT_FOUND,
    HTTPStatus.METHOD_NOT_ALLOWED,
    HTTPStatus.NOT_IMPLEMENTED,
}


class TokenizerError(EppError):
    """No engine gave an answer that could be used."""

    reason = "tokenizer-down"


class TokenizerAbsentError(EppError):
    """The engine has no such endpoint, or not for this model."""

    reason = "tokenizer-absent"


class TokenizerRefusedError(EppError):
    """The engine will not tokenize this very prompt, and would not serve it either."""

    reason = "tokenizer-refused"


class _Tokens(msgspec.Struct):
    """What `/tokenize` answers, or one who renders."""

    tokens: list[int] | None = None
    token_ids: list[int] | None = None
    features: msgspec.Raw = ABSENT


_tokens = msgspec.json.Decoder(_Tokens)


@dataclass(frozen=True, slots=True)
class Answer:
    """A prompt as the engine computes it."""

    ids: bytes
    """Little-endian uint32 each."""
    media: tuple[Media, ...] = ()


class EngineTokenizer:
    """Client of one endpoint. Holds no policy: `Tokens` decides when to ask."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        address: Callable[[], str | None],
        path: str = TOKENIZE,
    ) -> None:
        """`address` names a ready endpoint (`ip:port`, or a URL), another each time if it can."""
        self._session = session
        self._address = address
        self._path = path

    async def __call__(self, model: str, fields: Fields) -> bytes:
        """The body of the engine's answer, to be read by `answered`.

        Raises TokenizerError, TokenizerRefusedError where only this prompt is at fault, or
        TokenizerAbsentError where nobody can be asked.
        """
        body = _body(model, fields)
        for attempt in range(ATTEMPTS):
            address = self._address()
            if address is None:
                raise TokenizerError("nobody is ready to tokenize")
            base = address if "://" in address else f"http://{address}"
            try:
                return await self._post(base + self._path, body)
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
            if answer.status in _ABSENT and self._path != TOKENIZE:
                raise TokenizerAbsentError(f"status {answer.status} of {url}")
            if answer.status != HTTPStatus.OK:
                raise TokenizerError(f"status {answer.status} of {url}")
            try:
                await answer.content.readexactly(MAX_ANSWER_BYTES + 1)
            except asyncio.IncompleteReadError as whole:
                return whole.partial
            raise TokenizerError(f"{url} answered more than {MAX_ANSWER_BYTES} bytes")


def _body(model: str, fields: Sequence[tuple[str, bytes]]) -> bytes:
    """A request: values are the client's own JSON, names are ours or written as JSON again."""
    members = [b'"model":' + msgspec.json.encode(model)]
    members += [msgspec.json.encode(name) + b":" + raw for name, raw in fields]
    return b"{" + b",".join(members) + b"}"


def answered(answer: bytes) -> Answer:
    """What an answer says. Raises TokenizerError where that is no prompt."""
    try:
        found = _tokens.decode(answer)
        said = found.token_ids if found.tokens is None else found.tokens
        if said is None:
            raise TypeError("no ids")
        packed = array("I", said)
        media = media_of(found.features) if given(found.features) else ()
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise TokenizerError("an answer that is not a list of token ids") from error
    if byteorder == "big":
        packed.byteswap()
    return Answer(packed.tobytes(), media)
