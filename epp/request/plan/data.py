"""Who feeds which data to whom, checked before anything runs. Pure.

Plugins say what they consume, producers what they produce (`epp.framework.PRODUCED`). What no
producer of the configuration feeds comes from a producer of `ADDED`, or else from the picker's own
state, whose defaults `DEFAULTS` describes; only `dataLayer.injectDefaults: false` forbids that for
the engines' metrics.
"""

import re
from collections.abc import Iterator, Mapping

from epp.config.located import Location
from epp.config.picker_config import PickerConfig
from epp.errors import ConfigError
from epp.framework import registry
from epp.framework.registry import Kind

from . import elsewhere
from .entries import Entries, added
from .plan import Use

DEFAULTS = {
    "endpoints": "--endpoints-file, which is followed",
    "tokens": "the engines' own tokens, else estimated from bytes",
    "prefix-match": "the engines' KV events, else what was sent where",
    "inflight-load": "charged when a request is routed, until it ends",
    "engine-metrics": "reports of sidecars, and the metrics pages of engines without one",
    "session-id": "the request's session header",
    "encoder-cache": "what was sent where",
    "served-models": "the endpoints' pages of models",
    "predicted-latency": "expected from the observed speeds of engines and what they have to do",
}
"""Where each kind of data comes from when nobody is named."""

ADDED = {
    "encoder-cache": "mm-embeddings-cache-producer",
    "served-models": "models-data-source",
}
"""Producers that are put in where somebody reads their data and no entry feeds it."""

_NAMES_A_PRODUCER = re.compile(r"(^p|P|_p)roducer(Name|_name)?$")

Producers = dict[str, tuple[Use, ...]]
Consumers = dict[str, tuple[str, ...]]


def flow(config: PickerConfig, entries: Entries) -> tuple[Producers, Consumers]:
    """Producers and consumers by the data. Raises ConfigError for names that fit nothing."""
    _check_layer(config, entries)
    for number, entry in enumerate(config.plugins):
        _check_references(entry.parameters, ("plugins", number, "parameters"), entries)
    producers: Producers = {}
    types: dict[str, str] = {}
    for use in _producing(config, entries):
        earlier = types.setdefault(use.type.name, use.reference)
        if earlier != use.reference:
            what = f"{use.reference!r} is a second {use.type.name}, {earlier!r} feeds the same"
            raise ConfigError(use.where, what)
        for data in sorted(use.type.produces):
            producers[data] = (*producers.get(data, ()), use)
        entries.mark_used(use.reference)
    consumers: Consumers = {}
    for use in entries.uses.values():
        for data in sorted(use.type.consumes):
            consumers[data] = (*consumers.get(data, ()), use.reference)
    for data, name in ADDED.items():
        if data in consumers and data not in producers:
            producers[data] = (added(name),)
    _check_circles(producers)
    _check_metrics(config, entries, producers, consumers)
    return producers, consumers


def _producing(config: PickerConfig, entries: Entries) -> Iterator[Use]:
    """Producers in force: a discovery is only where it is named as the pool's."""
    layer = config.data_layer
    discovery = layer.discovery if layer is not None else None
    for use in entries.of(Kind.PRODUCER):
        if "endpoints" not in use.type.produces or (
            discovery is not None and use.reference == discovery.plugin_ref
        ):
            yield use


def _check_layer(config: PickerConfig, entries: Entries) -> None:
    layer = config.data_layer
    if layer is None:
        return
    if layer.discovery is not None:
        name, spot = layer.discovery.plugin_ref, ("dataLayer", "discovery", "pluginRef")
        if "endpoints" not in entries.refer(name, spot).type.produces:
            raise entries.file.fault(spot, f"{name!r} finds no endpoints: use file-discovery")
    given = entries.file.value["dataLayer"]
    for name, instead in elsewhere.DATA_LAYER.items():
        if given.get(name) is not None:
            what = f"{name!r} is not offered here: {instead}"
            raise entries.file.fault(("dataLayer", name), what)
    for number, source in enumerate(layer.sources):
        path: Location = ("dataLayer", "sources", number)
        _producer(source.plugin_ref, (*path, "pluginRef"), entries)
        for place, extractor in enumerate(source.extractors):
            _producer(extractor.plugin_ref, (*path, "extractors", place, "pluginRef"), entries)


def _producer(name: str, spot: Location, entries: Entries) -> None:
    """Refuse a name of what feeds no data."""
    if entries.is_idle(name):
        return
    use = entries.refer(name, spot)
    if use.type.kind is not Kind.PRODUCER:
        raise entries.file.fault(spot, f"{name!r} is a {use.type.kind}; it feeds no data")


def _check_references(parameters: Mapping[str, object], path: Location, entries: Entries) -> None:
    """Parameters such as `prefixMatchInfoProducerName` name an entry, or a default's type."""
    for key, name in parameters.items():
        if not isinstance(name, str) or not name or not _NAMES_A_PRODUCER.search(key):
            continue
        spot = (*path, key)
        if name in entries.uses or entries.is_idle(name):
            _producer(name, spot, entries)
        elif name in elsewhere.REFUSED:
            what = f"{name!r} is not offered here: {elsewhere.REFUSED[name]}"
            raise entries.file.fault(spot, what)
        elif name not in registry.names(Kind.PRODUCER):
            raise entries.file.fault(spot, entries.unknown(name))


def _check_circles(producers: Producers) -> None:
    """Refuse producers that wait for each other; one may refine what another produces."""
    checked: set[str] = set()
    everybody = {use.reference: use for uses in producers.values() for use in uses}

    def before(use: Use) -> Iterator[Use]:
        for data in use.type.consumes:
            yield from (one for one in producers.get(data, ()) if one is not use)

    def walk(use: Use, way: tuple[str, ...]) -> None:
        if use.reference in way:
            circle = " → ".join((*way[way.index(use.reference) :], use.reference))
            raise ConfigError(use.where, f"producers wait for each other: {circle}")
        if use.reference in checked:
            return
        for one in before(use):
            walk(one, (*way, use.reference))
        checked.add(use.reference)

    for use in everybody.values():
        walk(use, ())


def _check_metrics(
    config: PickerConfig, entries: Entries, producers: Producers, consumers: Consumers
) -> None:
    layer = config.data_layer
    if layer is None or layer.inject_defaults or "engine-metrics" in producers:
        return
    for reference in consumers.get("engine-metrics", ()):
        what = (
            f"nobody feeds the engine-metrics that {reference!r} reads: add metrics-data-source "
            "and core-metrics-extractor, or leave injectDefaults out"
        )
        raise entries.file.fault(("dataLayer", "injectDefaults"), what)
