"""Which part of a request an endpoint takes, by its label."""

from typing import Any

import pytest

from epp.control.files import parse_endpoints
from epp.errors import NoEndpoint
from epp.framework import Candidates, Endpoint, Role
from epp.request import filters
from tests.fakes.endpoints import POOL, endpoint

TABLE = {
    "": (True, False),
    "decode": (True, False),
    "prefill": (False, True),
    "encode": (False, False),
    "prefill-decode": (True, True),
    "encode-prefill": (False, True),
    "encode-prefill-decode": (True, True),
    "both": (True, True),
}


def pods(*roles: Role) -> list[Endpoint]:
    return [endpoint(number, role=role) for number, role in enumerate(roles)]


def test_every_role_of_the_reference_has_its_parts() -> None:
    assert {str(role): (role.serves_decode, role.serves_prefill) for role in Role} == TABLE


def test_a_label_that_is_no_role_is_refused() -> None:
    with pytest.raises(ValueError, match="boss"):
        Role("boss")


def test_an_endpoint_without_a_label_decodes_and_never_prefills() -> None:
    pod = endpoint("unlabelled")
    assert pod.role is Role.UNLABELLED
    assert list(filters.decoders(Candidates.of([pod]))) == [pod]
    assert list(filters.prefillers(Candidates.of([pod]))) == []


@pytest.mark.parametrize("label", [label for label in TABLE if label])
def test_the_endpoints_file_takes_every_role(label: str) -> None:
    entry = f"{{name: a, address: 1.2.3.4, port: 1, labels: {{llm-d.ai/role: {label}}}}}"
    warned: list[str] = []
    text = f"endpoints: [{entry}]".encode()
    (member,) = parse_endpoints(text, "e.yaml", POOL, warn=warned.append)
    assert str(member.role) == label
    assert warned == []


def test_an_empty_label_is_no_label() -> None:
    entry = "{name: a, address: 1.2.3.4, port: 1, labels: {llm-d.ai/role: ''}}"
    warned: list[str] = []
    text = f"endpoints: [{entry}]".encode()
    (member,) = parse_endpoints(text, "e.yaml", POOL, warn=warned.append)
    assert (member.role, warned) == (Role.UNLABELLED, [])


def test_a_misspelt_role_is_told_with_the_ones_there_are() -> None:
    entry = "{name: a, address: 1.2.3.4, port: 1, labels: {llm-d.ai/role: prefil}}"
    warned: list[str] = []
    text = f"endpoints: [{entry}]".encode()
    (member,) = parse_endpoints(text, "e.yaml", POOL, warn=warned.append)
    assert member.role is Role.UNLABELLED
    assert "(known: decode, prefill, encode, prefill-decode" in warned[0]


def test_filters_keep_the_order_and_leave_out_the_destinations() -> None:
    found = Candidates.of(pods(*Role))
    assert [str(pod.role) for pod in filters.decoders(found)] == [
        label for label, (decode, _) in TABLE.items() if decode
    ]
    assert [str(pod.role) for pod in filters.prefillers(found)] == [
        label for label, (_, prefill) in TABLE.items() if prefill
    ]
    last = found[-1]
    assert last in found
    assert last not in filters.others(found, {last.address})


@pytest.mark.parametrize(
    ("roles", "subset", "says"),
    [
        ([], None, "no endpoint of the pool is ready"),
        ([Role.DECODE], (), "that the gateway allows"),
        ([Role.PREFILL, Role.ENCODE, Role.ENCODE_PREFILL], None, "none that decodes is ready"),
        ([Role.DECODE, Role.PREFILL], ("10.0.0.1:8000",), "none that decodes is ready"),
    ],
)
def test_nobody_who_decodes_is_a_refusal_that_says_which(
    roles: list[Role], subset: Any, says: str
) -> None:
    with pytest.raises(NoEndpoint, match=says):
        filters.eligible(Candidates.of(pods(*roles)), subset)
