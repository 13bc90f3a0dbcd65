"""A configuration chooses which families of APIs are read."""

import pytest

from epp.errors import BadRequest
from epp.request.apis import catalog
from epp.request.apis.catalog import Rules
from epp.request.plan import elsewhere
from tests.fakes.desk import post

BODY = b'{"model": "m", "prompt": "hello", "messages": []}'


def rules(*parsers: str) -> Rules:
    return Rules(parsers=frozenset(parsers))


def test_every_known_path_belongs_to_a_family_that_configurations_know() -> None:
    assert catalog.FAMILIES.keys() == {*catalog.PARSERS, *catalog.FORMS}
    assert {*catalog.FAMILIES.values(), catalog.PASSTHROUGH} == elsewhere.PARSERS


def test_a_chosen_family_is_read_and_another_passes_where_anything_may() -> None:
    chosen = rules("openai-parser", "passthrough-parser")
    assert catalog.parse(post(BODY, path="/v1/completions"), chosen).model == "m"
    other = catalog.parse(post(BODY, path="/v1/messages"), chosen)
    assert (other.api, other.model, other.unscored) == ("passthrough", "", "unknown path")


def test_only_passthrough_reads_nothing_and_passes_any_body() -> None:
    parsed = catalog.parse(post(b"passthrough-parser"), rules("passthrough-parser"))
    assert (parsed.api, parsed.model) == ("passthrough", "")


@pytest.mark.parametrize("path", ["/v1/messages", "/primary-gateway-test"])
def test_a_post_that_no_chosen_parser_takes_is_refused(path: str) -> None:
    with pytest.raises(BadRequest, match="none of the configured parsers"):
        catalog.parse(post(BODY, path=path), rules("openai-parser"))


def test_a_request_without_a_body_passes_whatever_was_chosen() -> None:
    arrival = post(path="/v1/models", method="GET")
    assert catalog.parse(arrival, rules("openai-parser")).api == "passthrough"
