"""vLLM's tokens in, tokens out (`/inference/v1/generate`): the ids of the body are the prompt."""

import msgspec
import xxhash

from .conversation import SHAPELESS
from .openai import packed_ids
from .prompt import Parsed, Prompt, TextPrompt, TokenPrompt
from .reading import ABSENT, Body, decoded_or_none, first_limit, given, odd, read, salt

API = "generate"


class _Generate(Body):
    token_ids: msgspec.Raw = ABSENT
    features: msgspec.Raw = ABSENT
    content_parts: msgspec.Raw = ABSENT
    sampling_params: msgspec.Raw = ABSENT


class _Sampling(msgspec.Struct):
    max_tokens: msgspec.Raw = ABSENT


class _Features(msgspec.Struct):
    mm_hashes: msgspec.Raw = ABSENT


_generate = msgspec.json.Decoder(_Generate)
_ids = msgspec.json.Decoder(list[int])
_sampling = msgspec.json.Decoder(_Sampling)
_features = msgspec.json.Decoder(_Features)

DEFAULT_TOKENS = 16
"""Tokens that an engine generates without a limit of the request's own."""


def generate(path: str, body: bytes) -> Parsed:
    """Parse the body of a generation. Raises BadRequest."""
    request = read(_generate, body, nameless=True)
    if request is None:
        return odd(API, path, body, nameless=True)
    prompt: Prompt | None = None
    why = ""
    try:
        prompt = _prompt(request)
    except (*SHAPELESS, OverflowError):
        why = "token ids of unknown shape"
    sampling = decoded_or_none(_sampling, request.sampling_params)
    limit = first_limit(sampling.max_tokens) if sampling else None
    return Parsed(
        api=API,
        path=path,
        model=request.model or "",
        cache_salt=salt(request),
        prompt=prompt,
        output_tokens=limit or DEFAULT_TOKENS,
        unscored=why,
    )


def _prompt(request: _Generate) -> Prompt:
    """Exact, unless there are images: all of them have the same ids, but not the same blocks."""
    packed = packed_ids(_ids.decode(request.token_ids))
    if not packed:
        raise TypeError("no token ids")
    media = [raw for raw in (request.features, request.content_parts) if given(raw)]
    if not media:
        return TokenPrompt(packed)
    features = decoded_or_none(_features, request.features)
    named = features.mm_hashes if features and given(features.mm_hashes) else media[0]
    return TextPrompt(xxhash.xxh3_128_digest(bytes(named)) + packed, None)
