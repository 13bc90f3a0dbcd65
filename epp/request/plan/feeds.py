"""What the producers of a plan ask of the state path. It is read once, when the picker starts."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from epp.framework import (
    Discovery,
    EngineNames,
    Engines,
    MetricsReader,
    MetricsSource,
    ModelsReader,
    ModelsSource,
    TokenSource,
)
from epp.framework.engines import PAGE

from .live import Built, Named


def discovery(built: Built) -> Discovery | None:
    """Who says which endpoints there are; None: the flag does."""
    found = (one.plugin for one in built.producers.get("endpoints", ()))
    return next((one for one in found if isinstance(one, Discovery)), None)


def models_source(built: Built) -> ModelsSource | None:
    """How pages of models are read; None: nobody wants to know what is on them."""
    found = (one.plugin for one in built.producers.get("served-models", ()))
    source = next((one for one in found if isinstance(one, ModelsSource)), None)
    return source if models_readers(built) else None


def models_readers(built: Built) -> list[Named[ModelsReader]]:
    """Who is told what endpoints serve."""
    plugins = [Named(name, instance.plugin) for name, instance in built.plugins.items()]
    return [one for one in plugins if isinstance(one.plugin, ModelsReader)]


def exact_tokens(built: Built) -> bool:
    """Whether engines are asked for their own tokens: unless a producer wants estimates."""
    sources = [one.plugin for one in built.producers.get("tokens", ())]
    return all(source.exact for source in sources if isinstance(source, TokenSource))


def page_interval_s(built: Built) -> float | None:
    """Time between two readings of a metrics page; None: nobody asks for one."""
    asked = [source.interval_s for source in _sources(built)]
    return next((interval_s for interval_s in asked if interval_s is not None), None)


def engine_of(built: Built) -> Callable[[Mapping[str, str]], EngineNames]:
    """How to tell from its labels which metrics of an endpoint say what, and on which page."""
    readers = (one.plugin for one in built.producers.get("engine-metrics", ()))
    reader = next((one for one in readers if isinstance(one, MetricsReader)), None)
    engine = Engines().of if reader is None else reader.engine
    path = next((source.path for source in _sources(built) if source.path != PAGE), PAGE)
    if path == PAGE:
        return engine
    return lambda labels: replace(engine(labels), page=path)


def _sources(built: Built) -> list[MetricsSource]:
    producers = built.producers.get("engine-metrics", ())
    return [one.plugin for one in producers if isinstance(one.plugin, MetricsSource)]
