"""Ask an engine for its own tokens, and stop asking while it does not answer.

Exact tokens come from `/tokenize` of the engine that will compute the prompt: a tokenizer or a
template kept elsewhere drifts, and prefixes stop matching without a sign.
"""

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from enum import Enum
from http import HTTPStatus
from sys import byteorder

import aiohttp
import msgspec

from epp.errors import EppError

MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""Bytes of one answer of `/tokenize`: 2 million tokens and more."""
ATTEMPTS = 2
"""Endpoints to ask when one refuses the connection."""
MAX_MODELS = 256
"""Models whose breakers are kept, the least recently used forgotten first."""

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


class Permit(Enum):
    """Whether to ask."""

    ASK = "ask"
    PROBE = "probe"
    """Ask, but do not wait for the answer: it only tells whether the engine is back."""
    NO = "no"


class Breaker:
    """Stops asking after failures in a row; asks again once in a while, ever more rarely."""

    def __init__(
        self, *, threshold: int = 3, first_pause_s: float = 1.0, max_pause_s: float = 30.0
    ) -> None:
        self._threshold = threshold
        self._first_pause_s = first_pause_s
        self._max_pause_s = max_pause_s
        self._failures = 0
        self._pause_s = first_pause_s
        self._until: float | None = None
        self._probing = False

    @property
    def open(self) -> bool:
        return self._until is not None

    def permit(self, now: float) -> Permit:
        if self._until is None:
            return Permit.ASK
        if self._probing or now < self._until:
            return Permit.NO
        self._probing = True
        return Permit.PROBE

    def succeeded(self) -> None:
        self._failures = 0
        self._pause_s = self._first_pause_s
        self._until = None
        self._probing = False

    def failed(self, now: float) -> None:
        self._failures += 1
        if self._until is not None and not self._probing:
            return
        if self._failures >= self._threshold:
            if self._probing:
                self._pause_s = min(2 * self._pause_s, self._max_pause_s)
            self._until = now + self._pause_s
        self._probing = False


class Breakers:
    """One breaker per model: an unknown model must not stop the others."""

    def __init__(self, max_models: int = MAX_MODELS) -> None:
        self._max_models = max_models
        self._breakers: OrderedDict[str, Breaker] = OrderedDict()

    def of(self, model: str) -> Breaker:
        breaker = self._breakers.get(model)
        if breaker is None:
            breaker = self._breakers[model] = Breaker()
            if len(self._breakers) > self._max_models:
                self._breakers.popitem(last=False)
        else:
            self._breakers.move_to_end(model)
        return breaker

    def __len__(self) -> int:
        return len(self._breakers)
