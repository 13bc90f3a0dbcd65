"""docs/conformance.md says what the tests show."""

from tests.conformance import page


def test_the_page_is_as_the_tests_are() -> None:
    assert page.PAGE.read_text() == page.page(), "run `make conformance-page`"
