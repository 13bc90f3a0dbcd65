"""vLLM's tokens in, tokens out (`/inference/v1/generate`): the ids of the body are the prompt."""

from contextlib import suppress

import msgspec
import xxhash

from epp.bodies.sharing import Api

from .features import media_of
from .openai import packed_ids
from .parser import Parser
from .prompt import Parsed, Prompt, TextPrompt, TokenPrompt
from .reading import ABSENT, decoded_or_none, first_limit, given
from .sharing import Generation, whole

API = "generate"


class _Generate(Generation):
    token_ids: msgspec.Raw = ABSENT
    features: msgspec.Raw = ABSENT
    content_parts: msgspec.Raw = ABSENT
    sampling_params: msgspec.Raw = ABSENT


class _Sampling(msgspec.Struct):
    max_tokens: msgspec.Raw = ABSENT


_generate = msgspec.json.Decoder(_Generate)
_ids = msgspec.json.Decoder(list[int])
_sampling = msgspec.json.Decoder(_Sampling)

DEFAULT_TOKENS = 16
"""Tokens that an engine generates without a limit of the request's own."""


def generate(path: str, body: bytes) -> Parsed:
    """Parse the body of a generation. Raises BadRequest."""
    return _PARSER.parsed(path, body, nameless=True)


def _prompt(request: _Generate) -> Prompt:
    """Exact, unless there are images of which only the engine will know where they stand."""
    packed = packed_ids(_ids.decode(request.token_ids))
    if not packed:
        raise TypeError("no token ids")
    media = [raw for raw in (request.features, request.content_parts) if given(raw)]
    if not media:
        return TokenPrompt(packed)
    if not given(request.content_parts):
        with suppress(ValueError, RecursionError):
            return TokenPrompt(packed, media=media_of(request.features))
    return TextPrompt(xxhash.xxh3_128_digest(b"\0".join(map(bytes, media))) + packed, None)


def _limit(request: _Generate) -> int:
    sampling = decoded_or_none(_sampling, request.sampling_params)
    limit = first_limit(sampling.max_tokens) if sampling else None
    return limit or DEFAULT_TOKENS


_PARSER = Parser(
    api=API,
    decoder=_generate,
    prompt=_prompt,
    where="token ids",
    limit=_limit,
    whole=lambda request: whole(Api.GENERATE, request),
)
