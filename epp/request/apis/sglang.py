"""SGLang's own generation (`/generate`): token ids, or text, and no model's name."""

import msgspec
import xxhash

from .conversation import MEDIA_TOKENS
from .openai import packed_ids
from .parser import Parser
from .prompt import Parsed, Prompt, TextPrompt, TokenPrompt
from .reading import ABSENT, Body, decoded_or_none, first_limit, given

API = "sglang-generate"
DEFAULT_TOKENS = 128
"""Tokens that the engine generates without a limit of the request's own (`SamplingParams`)."""


class _Generate(Body):
    input_ids: msgspec.Raw = ABSENT
    text: msgspec.Raw = ABSENT
    image_data: msgspec.Raw = ABSENT
    audio_data: msgspec.Raw = ABSENT
    video_data: msgspec.Raw = ABSENT
    sampling_params: msgspec.Raw = ABSENT
    extra_key: msgspec.Raw = ABSENT
    lora_path: msgspec.Raw = ABSENT


class _Sampling(msgspec.Struct):
    max_new_tokens: msgspec.Raw = ABSENT


_generate = msgspec.json.Decoder(_Generate)
_ids = msgspec.json.Decoder(list[int])
_lists = msgspec.json.Decoder(list[list[int]])
_texts = msgspec.json.Decoder(str | list[str])
_sampling = msgspec.json.Decoder(_Sampling | list[_Sampling])
_name = msgspec.json.Decoder(str)


def generate(path: str, body: bytes) -> Parsed:
    """Parse the body of a generation. Raises BadRequest."""
    return _PARSER.parsed(path, body, nameless=True)


def _prompt(request: _Generate) -> Prompt:
    """Of several prompts the longest has keys; the engine takes either ids or text, not both."""
    if given(request.input_ids) == given(request.text):
        raise TypeError("either ids or text")
    members = (request.image_data, request.audio_data, request.video_data)
    media = [bytes(raw) for raw in members if given(raw)]
    if given(request.input_ids):
        flat = decoded_or_none(_ids, request.input_ids)
        return _of_ids(_lists.decode(request.input_ids) if flat is None else [flat], media)
    return _of_texts(_texts.decode(request.text), media)


def _of_ids(lists: list[list[int]], media: list[bytes]) -> Prompt:
    packed = [packed_ids(ids) for ids in lists]
    longest = max(packed, key=len, default=b"")
    if not longest:
        raise TypeError("no token ids")
    if media:
        return _with_media(longest, media)
    return TokenPrompt(longest, (sum(map(len, packed)) - len(longest)) // 4)


def _of_texts(texts: str | list[str], media: list[bytes]) -> TextPrompt:
    encoded = [text.encode() for text in ([texts] if isinstance(texts, str) else texts)]
    longest = max(encoded, key=len, default=b"")
    if not longest:
        raise TypeError("no text")
    if media:
        return _with_media(longest, media)
    tokenize = (("prompt", msgspec.json.encode(longest.decode())),)
    return TextPrompt(longest, tokenize, other_bytes=sum(map(len, encoded)) - len(longest))


def _with_media(prompt: bytes, media: list[bytes]) -> TextPrompt:
    """Placeholders are the same whatever an image shows, so its digest comes first."""
    digest = xxhash.xxh3_128_digest(b"\0".join(media))
    return TextPrompt(digest + prompt, None, media_tokens=len(media) * MEDIA_TOKENS)


def _salt(request: _Generate) -> str:
    """The engine keeps a cache for each pair of these two."""
    key = decoded_or_none(_name, request.extra_key) or ""
    adapter = decoded_or_none(_name, request.lora_path) or ""
    return f"{key}\0{adapter}" if adapter else key


def _limit(request: _Generate) -> int:
    """The largest limit where each of several prompts has its own."""
    raw = request.sampling_params
    sampling = decoded_or_none(_sampling, raw) if given(raw) else None
    each = sampling if isinstance(sampling, list) else [sampling] if sampling else []
    return max(
        (first_limit(one.max_new_tokens) or DEFAULT_TOKENS for one in each), default=DEFAULT_TOKENS
    )


_PARSER = Parser(
    api=API, decoder=_generate, prompt=_prompt, where="prompt", limit=_limit, salt=_salt
)
