"""vLLM's gRPC calls (`vllm.grpc.engine.VllmEngine`): ids or text, and no model's name.

Fields are those of `vllm/grpc/vllm_engine.proto`; calls that are not here cost the engine nothing
and pass. Text is estimated, for an engine that speaks gRPC has no `/tokenize` to ask.
"""

from collections.abc import Iterable

import xxhash

from epp._pb import calls_pb2 as pb

from . import framing
from .generate import DEFAULT_TOKENS
from .openai import packed_ids
from .pooled import UNSCORED
from .prompt import Parsed, Prompt, TextPrompt, TokenPrompt

GENERATE = "grpc-generate"
EMBED = "grpc-embed"
COMPRESSED = "compressed message"


def generate(path: str, body: bytes) -> Parsed:
    """Parse the body of a `Generate` call. Raises BadRequest."""
    data = framing.message(body)
    if data is None:
        return Parsed(api=GENERATE, path=path, unscored=COMPRESSED)
    call = framing.decoded(pb.Generate, data)
    prompt = _prompt(call)
    return Parsed(
        api=GENERATE,
        path=path,
        prompt=prompt,
        output_tokens=call.sampling.max_tokens or DEFAULT_TOKENS,
        unscored="" if prompt else "no prompt",
    )


def embed(path: str, body: bytes) -> Parsed:
    """Parse the body of an `Embed` call, which is routed by its size. Raises BadRequest."""
    data = framing.message(body)
    tokens = None if data is None else len(framing.decoded(pb.Embed, data).ids.ids)
    return Parsed(
        api=EMBED, path=path, prompt_tokens=tokens or None, output_tokens=1, unscored=UNSCORED
    )


def _prompt(call: pb.Generate) -> Prompt | None:
    ids, text = packed_ids(call.ids.ids), call.text.encode()
    if not ids and not text:
        return None
    media = _digest((*call.media, *call.more_media, *call.media_references))
    if media or text:
        return TextPrompt(media + ids + text, None)
    if call.sampling.HasField("truncate_prompt_tokens"):
        return TextPrompt(ids, None)
    return TokenPrompt(ids)


def _digest(media: Iterable[bytes]) -> bytes:
    """Images' ids are the same whatever they show; empty without any."""
    whole = b"\0".join(media)
    return xxhash.xxh3_128_digest(whole) if whole else b""
