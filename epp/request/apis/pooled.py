"""APIs that compute a prompt and generate nothing: embeddings, pooling, classes, scores, ranks.

They are routed by load: their work is the prompts' size, and engines keep little of it in a cache.
"""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from epp.state.blocks import ESTIMATE_BYTES_PER_TOKEN

from .prompt import Parsed
from .reading import ABSENT, Body, decoded_or_none, odd, read

UNSCORED = "not generative"

_B = TypeVar("_B", bound=Body)


class _Inputs(Body):
    input: msgspec.Raw = ABSENT
    inputs: msgspec.Raw = ABSENT
    texts: msgspec.Raw = ABSENT
    data: msgspec.Raw = ABSENT


class _Pairs(Body):
    query: msgspec.Raw = ABSENT
    queries: msgspec.Raw = ABSENT
    text_1: msgspec.Raw = ABSENT
    data_1: msgspec.Raw = ABSENT
    documents: msgspec.Raw = ABSENT
    items: msgspec.Raw = ABSENT
    text_2: msgspec.Raw = ABSENT
    data_2: msgspec.Raw = ABSENT


_inputs = msgspec.json.Decoder(_Inputs)
_pairs = msgspec.json.Decoder(_Pairs)
_texts = msgspec.json.Decoder(str | list[str | int | list[int]])

_LEFT = ("query", "queries", "text_1", "data_1")
_RIGHT = ("documents", "items", "text_2", "data_2")


def embeddings(path: str, body: bytes) -> Parsed:
    """OpenAI's embeddings. Raises BadRequest."""
    return _sized("embeddings", path, body, _inputs, _all, nameless=False)


def pooling(path: str, body: bytes) -> Parsed:
    """vLLM's pooling and classes, and embeddings as Cohere has them. Raises BadRequest."""
    return _sized("pooling", path, body, _inputs, _all, nameless=True)


def scores(path: str, body: bytes) -> Parsed:
    """Scores of pairs, and documents ranked by a query. Raises BadRequest."""
    return _sized("scores", path, body, _pairs, _each_pair, nameless=True)


def _sized(
    api: str,
    path: str,
    body: bytes,
    decoder: "msgspec.json.Decoder[_B]",
    size: Callable[[_B], int | None],
    *,
    nameless: bool,
) -> Parsed:
    request = read(decoder, body, nameless=nameless)
    if request is None:
        return odd(api, path, body, nameless=nameless)
    return Parsed(
        api=api,
        path=path,
        model=request.model or "",
        prompt_tokens=size(request),
        output_tokens=1,
        unscored=UNSCORED,
    )


def _all(request: _Inputs) -> int | None:
    sizes = _sizes(request, ("input", "inputs", "texts", "data"))
    return None if sizes is None else sum(sizes)


def _each_pair(request: _Pairs) -> int | None:
    """One text on the left is computed again with each one on the right."""
    left, right = _sizes(request, _LEFT), _sizes(request, _RIGHT)
    if left is None or right is None:
        return None
    return sum(left) * (len(right) if len(left) == 1 else 1) + sum(right)


def _sizes(request: Body, names: tuple[str, ...]) -> list[int] | None:
    """Estimated tokens of each text of the first member that holds texts or token ids."""
    for name in names:
        texts = decoded_or_none(_texts, getattr(request, name))
        if isinstance(texts, str):
            return [_size(texts)]
        if texts and isinstance(texts[0], int):
            return [len(texts)]
        if texts:
            return [len(text) if isinstance(text, list) else _size(str(text)) for text in texts]
    return None


def _size(text: str) -> int:
    return -(-len(text) // ESTIMATE_BYTES_PER_TOKEN)
