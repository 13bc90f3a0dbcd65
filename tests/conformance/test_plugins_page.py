"""Every plugin of the reference is here, or it is said why not and what to use instead."""

from epp.framework import registry
from epp.framework.registry import Kind
from epp.request.plan import elsewhere
from tests.conformance import plugins_page


def test_nothing_differs_from_the_reference_without_a_reason() -> None:
    assert plugins_page.unexplained() == []


def test_the_page_of_plugins_is_up_to_date() -> None:
    assert plugins_page.PAGE.read_text() == plugins_page.page(), "run make plugins-page"


def test_every_name_that_is_refused_or_idle_is_one_of_the_reference() -> None:
    known = plugins_page.reference()
    for names in (elsewhere.REFUSED, elsewhere.NOTHING_TO_DO, elsewhere.DEPRECATED):
        assert set(names) <= set(known)


def test_every_reason_of_a_parameter_without_effect_names_one_that_is_there() -> None:
    for kind in Kind:
        for plugin in registry.types(kind).values():
            reasons = getattr(plugin.factory, "without_effect", {})
            assert set(reasons) <= {parameter.name for parameter in plugin.parameters}, plugin.name
