"""APIs that cost an engine's GPU nothing: tokens, templates, counts, and lists that it keeps.

Any ready endpoint will do; they are charged next to nothing.
"""

import msgspec

from .prompt import Parsed
from .reading import Body, odd, read

UNSCORED = "nothing computed"

_body = msgspec.json.Decoder(Body)


def tokens(path: str, body: bytes) -> Parsed:
    """vLLM's `/tokenize` and `/detokenize`. Raises BadRequest."""
    return _light("tokens", path, body, nameless=True)


def render(path: str, body: bytes) -> Parsed:
    """A request turned into the engine's tokens, without an answer. Raises BadRequest."""
    return _light("render", path, body)


def count_tokens(path: str, body: bytes) -> Parsed:
    """Anthropic's count of a message's tokens. Raises BadRequest."""
    return _light("count-tokens", path, body)


def conversations(path: str, body: bytes) -> Parsed:
    """OpenAI's conversations, which have no model and may have no body. Raises BadRequest."""
    if not body:
        body = b"{}"
    return _light("conversations", path, body, nameless=True)


def _light(api: str, path: str, body: bytes, *, nameless: bool = False) -> Parsed:
    request = read(_body, body, nameless=nameless)
    if request is None:
        return odd(api, path, body, nameless=nameless)
    return Parsed(
        api=api,
        path=path,
        model=request.model or "",
        prompt_tokens=1,
        output_tokens=1,
        unscored=UNSCORED,
    )
