"""Which of several pools a request is for."""

import pytest

from epp.errors import PoolNotFound
from epp.request.exchange import Arrival, Director, Outcome
from epp.request.pools import Pools
from tests.fakes.director import route

HOSTS = {
    "llama.example.com": "exact",
    "*.example.com": "wild",
    "*.b.example.com": "longer",
    "fd00::1": "never",
    "[fd00::1]": "six",
}


class Named(Director):
    def __init__(self, name: str) -> None:
        self.name = name

    async def decide(self, arrival: Arrival) -> Outcome:
        return route(self.name)


def pools(**more: str) -> Pools:
    hosts = {**HOSTS, **({"*": "rest"} if more else {})}
    return Pools({name: Named(name) for name in hosts.values()}, hosts)


@pytest.mark.parametrize(
    ("authority", "pool"),
    [
        ("llama.example.com", "exact"),
        ("LLAMA.example.com:8080", "exact"),
        ("other.example.com", "wild"),
        ("x.b.example.com", "longer"),
        ("x.y.b.example.com:1", "longer"),
        ("b.example.com", "wild"),
        ("example.com", None),
        ("", None),
        ("[fd00::1]:8080", "six"),
        ("[fd00::1]", "six"),
        ("." * 300, None),
    ],
)
def test_the_longest_name_that_a_host_has_wins(authority: str, pool: str | None) -> None:
    assert pools().of_host(authority) == pool
    assert pools(rest="*").of_host(authority) == (pool or "rest")


async def test_the_gateway_s_word_goes_before_the_client_s_host() -> None:
    several = pools()
    decided = await several.decide(
        Arrival(headers={":authority": "llama.example.com"}, pool="longer")
    )
    assert getattr(decided, "destination", None) == "longer"
    decided = await several.decide(Arrival(headers={":authority": "llama.example.com"}))
    assert getattr(decided, "destination", None) == "exact"


async def test_a_request_for_no_pool_is_refused_and_counted() -> None:
    several = pools()
    for arrival in (
        Arrival(headers={":authority": "elsewhere.org"}),
        Arrival(headers={}),
        Arrival(headers={":authority": "llama.example.com"}, pool="gone"),
    ):
        refused = await several.decide(arrival)
        assert isinstance(refused, PoolNotFound)
        assert refused.status == 404
    assert several.unknown == 3
