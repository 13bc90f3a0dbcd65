from dataclasses import replace
from random import Random

import pytest
from price_scorer import Price

from epp.framework import Candidates, contract, samples

FLEX = {"x-service-tier": "flex"}


def score(headers: dict[str, str], *prices: str) -> list[float]:
    """Of endpoints with these prices, by a scorer as its defaults make it."""
    draws = Random(1)
    pool = [
        replace(samples.endpoint(draws, number), labels={"example.com/price": price})
        for number, price in enumerate(prices)
    ]
    asked = replace(samples.request(draws), headers=headers)
    return Price().score(asked, Candidates.of(pool))


def test_it_keeps_the_contract() -> None:
    contract.check(Price)


def test_it_keeps_the_contract_where_labels_are_no_prices() -> None:
    contract.check(
        lambda: Price(header="x-session-id", value="one", label="topology.kubernetes.io/zone")
    )


def test_twice_the_price_scores_half() -> None:
    assert score(FLEX, "2", "4", "2.0") == [1.0, 0.5, 1.0]


def test_a_request_that_does_not_ask_feels_nothing() -> None:
    assert score({}, "2", "4") == score({"x-service-tier": "default"}, "2", "4") == [0.0, 0.0]


@pytest.mark.parametrize("label", ["", "cheap", "nan", "inf", "-1", "0"])
def test_what_is_no_price_is_never_preferred(label: str) -> None:
    assert score(FLEX, label, "4") == [0.0, 1.0]
    assert score(FLEX, label, label) == [0.0, 0.0]


def test_an_empty_label_is_refused() -> None:
    with pytest.raises(ValueError, match="label must not be empty"):
        Price(label="")
