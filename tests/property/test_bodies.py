"""Whatever a client sends is understood, passed on unscored, or refused: never an accident."""

import json
from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from epp.errors import BadRequest
from epp.framework import Endpoint, EndpointId, Incarnation, PoolId
from epp.request.apis import catalog
from epp.request.apis.prompt import TokenPrompt
from epp.request.exchange import Arrival
from epp.request.subset import allowed

PATHS = st.sampled_from(["/v1/completions", "/v1/chat/completions", "/v1/other?x", ""])

values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "image_url", "name"]) | st.text(),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
NAMES = [
    "model",
    "prompt",
    "messages",
    "max_tokens",
    "cache_salt",
    "tools",
    "chat_template_kwargs",
    "reasoning_effort",
    "truncate_prompt_tokens",
]


def _arrival(path: str, body: bytes) -> Arrival:
    return Arrival(
        headers={":method": "POST", ":path": path, "content-type": "application/json"},
        body=body,
        has_body=True,
    )


@given(path=PATHS, body=st.binary(max_size=200))
def test_any_bytes_are_understood_passed_or_refused(path: str, body: bytes) -> None:
    with suppress(BadRequest):
        assert catalog.parse(_arrival(path, body)).api


@given(path=PATHS, fields=st.dictionaries(st.sampled_from(NAMES), values))
def test_any_json_is_understood_passed_or_refused(path: str, fields: dict[str, Any]) -> None:
    body = json.dumps({"model": "m", **fields}).encode()
    try:
        parsed = catalog.parse(_arrival(path, body))
    except BadRequest:
        assert (
            not isinstance(fields.get("model", "m"), str)
            or not fields.get("model", "m")
            or (b"NaN" in body or b"Infinity" in body)
        )
    else:
        assert parsed.prompt is not None or parsed.unscored
        assert parsed.output_tokens is None or parsed.output_tokens > 0


@given(ids=st.lists(st.integers(0, 2**32 - 1), min_size=1))
def test_token_ids_survive(ids: list[int]) -> None:
    body = json.dumps({"model": "m", "prompt": ids}).encode()
    prompt = catalog.parse(_arrival("/v1/completions", body)).prompt
    assert isinstance(prompt, TokenPrompt)
    packed = prompt.ids
    assert [int.from_bytes(packed[i : i + 4], "little") for i in range(0, len(packed), 4)] == ids


@given(subset=st.lists(st.text(max_size=30), max_size=5))
def test_any_subset_gives_members_of_the_pool_and_never_fails(subset: list[str]) -> None:
    ident = EndpointId(PoolId("p"), "a", 1)
    pool = [Endpoint(id=ident, address="[::1]:8000", incarnation=Incarnation(ident, 1))]
    assert allowed(pool, subset) in ([], pool)
