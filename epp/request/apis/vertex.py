"""Vertex AI's gRPC calls, which wrap the JSON of OpenAI's APIs in an `HttpBody`.

The body of `ChatCompletions` is a chat. Of the raw calls it may be anything: what looks like a chat
or a completion is one, else it is taken for OpenAI's responses, as the reference does. Prompts are
estimated, for whoever takes these calls has no `/tokenize` to ask.
"""

from dataclasses import replace

import msgspec

from epp._pb import calls_pb2 as pb

from . import framing, openai, responses
from .prompt import Parsed, TextPrompt
from .reading import ABSENT, decoded_or_none, given
from .vllm_grpc import COMPRESSED

API = "vertex"


class _Shape(msgspec.Struct):
    messages: msgspec.Raw = ABSENT
    prompt: msgspec.Raw = ABSENT


_shape = msgspec.json.Decoder(_Shape)


def chat(path: str, body: bytes) -> Parsed:
    """Parse the body of a `ChatCompletions` call. Raises BadRequest."""
    inner = _inner(body)
    return _compressed(path) if inner is None else _asked(openai.chat(path, inner, nameless=True))


def raw(path: str, body: bytes) -> Parsed:
    """Parse the body of a `RawPredict` or a `StreamRawPredict` call. Raises BadRequest."""
    inner = _inner(body)
    if inner is None:
        return _compressed(path)
    shape = decoded_or_none(_shape, msgspec.Raw(inner)) or _Shape()
    parse = responses.responses
    if given(shape.messages):
        parse = openai.chat
    elif given(shape.prompt):
        parse = openai.completions
    return _asked(parse(path, inner, nameless=True))


def _inner(body: bytes) -> bytes | None:
    data = framing.message(body)
    return None if data is None else framing.decoded(pb.Wrapped, data).body.data


def _compressed(path: str) -> Parsed:
    return Parsed(api=API, path=path, unscored=COMPRESSED)


def _asked(parsed: Parsed) -> Parsed:
    """As this API's: nobody tokenizes it, and one engine computes all of it."""
    prompt = parsed.prompt
    if isinstance(prompt, TextPrompt):
        prompt = replace(prompt, asked=None)
    return replace(parsed, api=API, prompt=prompt, whole="api")
