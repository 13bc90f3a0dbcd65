"""The conformance tests' headers, with the director that they are meant for and with any other."""

import pytest

from epp import protocol
from epp.errors import NoEndpoint
from epp.request import conformance
from epp.request.director import PickSettings
from tests.fakes.desk import ask, open_desk

SELECT = protocol.CONFORMANCE_SELECTION
ON = PickSettings(conformance=True)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("10.0.0.1", ("10.0.0.1",)),
        (" 10.0.0.1:8000 ,10.0.0.2", ("10.0.0.1:8000", "10.0.0.2")),
        ("", None),
        (" , ", None),
    ],
)
def test_a_selection_is_a_list_of_addresses(value: str, found: tuple[str, ...] | None) -> None:
    assert conformance.selection({SELECT: value}) == found
    assert conformance.selection({}) is None


@pytest.mark.parametrize(
    ("served", "text"),
    [
        ("10.0.0.1:8000", "10.0.0.1:8000"),
        ("", "fail: missing destination endpoint served metadata"),
        (None, "fail: missing envoy lb metadata"),
    ],
)
async def test_the_answer_says_who_served(served: str | None, text: str) -> None:
    async with open_desk(2, settings=ON) as desk:
        route = await desk.route(ask())
        headers = route.progress.response_headers(200, served)
        assert headers == ((protocol.CONFORMANCE_SERVED, text),)


@pytest.mark.parametrize("entry", ["10.0.0.3:8000", "10.0.0.3"])
async def test_the_selection_beats_the_subset(entry: str) -> None:
    async with open_desk(4, settings=ON) as desk:
        route = await desk.route(ask(), headers={SELECT: entry}, subset=("10.0.0.1:8000",))
        bare = await desk.route(method="GET", path="/", headers={SELECT: entry})
        within = await desk.route(ask(), subset=("10.0.0.1:8000",))
        gone = await desk.decide(ask(), headers={SELECT: "10.9.9.9"})
    assert (route.destination, bare.destination) == ("10.0.0.3:8000", "10.0.0.3:8000")
    assert within.destination == "10.0.0.1:8000"
    assert isinstance(gone, NoEndpoint)


async def test_without_the_flag_the_headers_mean_nothing() -> None:
    async with open_desk(4) as desk:
        route = await desk.route(ask(), headers={SELECT: "10.0.0.3"}, subset=("10.0.0.1:8000",))
        headers = route.progress.response_headers(200, "10.0.0.1:8000")
    assert route.destination == "10.0.0.1:8000"
    assert headers == ()


async def test_a_subset_that_is_not_to_be_believed_is_not() -> None:
    settings = PickSettings(subset_filter=False)
    async with open_desk(2, settings=settings) as desk:
        assert (await desk.route(ask(), subset=("10.9.9.9",))).destination
        assert (await desk.route(ask(), subset=())).destination
