"""Write docs/plugins.md: every plugin type of ours and of the reference, and what differs.

`make plugins-page` writes it; a test keeps it current. What the reference has stands in
`tests/data/reference_plugins.toml`, what we have is read from the installed plugins themselves.
"""

import dataclasses
import tomllib
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from epp.config.values import seconds
from epp.framework import registry
from epp.framework.plugins import yaml_name
from epp.framework.registry import Kind, Parameter, PluginType
from epp.request.apis import catalog
from epp.request.plan import elsewhere

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "plugins.md"
REFERENCE = ROOT / "tests" / "data" / "reference_plugins.toml"

NONE, REQUIRED = "(none)", "(required)"

TITLES = {
    Kind.SCORER: "Scorers",
    Kind.FILTER: "Filters",
    Kind.PICKER: "Pickers",
    Kind.HANDLER: "Profile handlers",
    Kind.DECIDER: "Deciders",
    Kind.PRODUCER: "Producers and data sources",
    Kind.DETECTOR: "Saturation detectors",
    Kind.ADMITTER: "Admitters",
}

HEAD = """# Plugins

Every type that an EndpointPickerConfig may name, with its parameters and their defaults. This page
is generated from the installed plugins and from `tests/data/reference_plugins.toml`, which says
what the Gateway API Inference Extension's llm-d router has (`make plugins-page`). A test fails when
the page is out of date, or when a type or a default differs from the reference without a reason
here.

A default of `-` is none; **required** parameters have none either. Parameters marked *ours* are not
in the reference. The module of each plugin says what its parameters mean and how it rates.
Types of stability *alpha* need `--allow-experimental-plugins`.
"""


def page() -> str:
    """The text of docs/plugins.md."""
    theirs = reference()
    parts = [HEAD]
    for kind, title in TITLES.items():
        parts += [f"## {title}\n", "| type | parameters | notes |", "|---|---|---|"]
        parts += [_row(one, theirs.get(one.name)) for one in registry.types(kind).values()]
        parts.append("")
    parts += ["## Parsers\n", "Families of APIs that `requestHandler.parsers` chooses among.\n"]
    parts += ["| type | reads | notes |", "|---|---|---|"]
    parts += [_parser(name, theirs[name]) for name in sorted(elsewhere.PARSERS)] + [""]
    parts += ["## Not offered\n", "Named in a configuration they are refused with this sentence.\n"]
    parts += ["| type | instead |", "|---|---|"]
    absent = sorted(name for name in theirs if name in elsewhere.REFUSED and not _found(name))
    parts += [f"| `{name}` | {_sentence(elsewhere.REFUSED[name])} |" for name in absent]
    parts += ["", "## Accepted without effect\n", "| type | because |", "|---|---|"]
    idle = sorted(name for name in theirs if name in elsewhere.NOTHING_TO_DO)
    parts += [f"| `{name}` | {_sentence(elsewhere.NOTHING_TO_DO[name])} |" for name in idle]
    return "\n".join([*parts, ""])


def unexplained() -> list[str]:
    """What the reference has, and we lack or have otherwise without a reason."""
    told: list[str] = []
    for name, entry in reference().items():
        ours = _found(name)
        if ours is not None:
            told += _differences(ours, entry)
        elif not any(name in known for known in _EXPLAINED):
            told.append(f"{name} is missing, and elsewhere.py does not say why")
    return told


_EXPLAINED = (elsewhere.PARSERS, elsewhere.REFUSED, elsewhere.NOTHING_TO_DO)


def reference() -> dict[str, dict[str, Any]]:
    """Plugins of the reference by type."""
    entries = tomllib.loads(REFERENCE.read_text())["plugin"]
    return {entry["type"]: entry for entry in entries}


def parameters(plugin: PluginType) -> dict[str, Any]:
    """Defaults by parameter; members of a group follow a dot, those of a list's entries `[]`."""
    found: dict[str, Any] = {}
    for parameter in plugin.parameters:
        default = _default(plugin, parameter)
        found |= _flat(parameter.yaml_name, parameter.annotation, default)
    return found


def _differences(ours: PluginType, entry: Mapping[str, Any]) -> Iterator[str]:
    differs: Mapping[str, str] = entry.get("differs", {})
    have = parameters(ours)
    if ours.kind != entry["kind"]:
        yield f"{ours.name} is a {ours.kind} here and a {entry['kind']} there"
    if (ours.stability == "alpha") != (entry.get("stability") == "alpha"):
        yield f"{ours.name} is {ours.stability} here"
    if ("deprecated" in entry) != (ours.name in elsewhere.DEPRECATED):
        yield f"{ours.name} is deprecated on one side only"
    for name, default in entry.get("parameters", {}).items():
        if name in differs:
            continue
        if name not in have:
            yield f"{ours.name} lacks {name}"
        elif not _equal(have[name], default):
            yield f"{ours.name}: {name} is {have[name]!r} here and {default!r} there"
    for name in differs:
        if name and name not in entry["parameters"]:
            yield f"{ours.name}: differs names {name}, which the reference does not have"


def _row(plugin: PluginType, entry: Mapping[str, Any] | None) -> str:
    given = {} if entry is None else entry.get("parameters", {})
    shown = [
        f"`{name}` {_shown(default)}" + ("" if entry is None or name in given else " *ours*")
        for name, default in parameters(plugin).items()
    ]
    return f"| `{plugin.name}` | {'<br>'.join(shown) or '-'} | {' '.join(_notes(plugin, entry))} |"


def _parser(name: str, entry: Mapping[str, Any]) -> str:
    paths = [f"`{path}`" for path, family in sorted(catalog.FAMILIES.items()) if family == name]
    notes = "" if name in catalog.DEFAULT else "Only where it is chosen."
    more = entry.get("differs", {}).get("", "")
    return f"| `{name}` | {'<br>'.join(paths) or 'nothing'} | {notes}{' ' if more else ''}{more} |"


def _notes(plugin: PluginType, entry: Mapping[str, Any] | None) -> Iterator[str]:
    if plugin.name in elsewhere.DEPRECATED:
        yield f"*Deprecated*: {_sentence(elsewhere.DEPRECATED[plugin.name])}"
    else:
        yield plugin.summary
    if plugin.stability == "alpha":
        yield "*Alpha*."
    if entry is None:
        yield "*Ours*."
        return
    for name, reason in entry.get("differs", {}).items():
        yield f"`{name}`: {reason}" if name else reason
    idle = plugin.without_effect
    for reason in dict.fromkeys(idle.values()):
        names = ", ".join(f"`{name}`" for name, why in idle.items() if why == reason)
        yield f"Without effect: {names}; {_sentence(reason)}"


def _found(name: str) -> PluginType | None:
    return registry.find(name)


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _default(plugin: PluginType, parameter: Parameter) -> Any:
    """What the constructor takes when nobody says anything."""
    if parameter.required:
        return REQUIRED
    if dataclasses.is_dataclass(plugin.factory):
        for field in dataclasses.fields(plugin.factory):
            if field.name == parameter.name and callable(field.default_factory):
                return field.default_factory()
    return parameter.default


def _flat(name: str, annotation: Any, default: Any) -> dict[str, Any]:
    """A parameter, or the members of the group that it is, or is a list of."""
    group, listed = _group(annotation)
    if group is None:
        return {name: default}
    found: dict[str, Any] = {}
    hints = typing.get_type_hints(group, include_extras=True)
    given = None if listed or isinstance(default, str) else default
    for field in dataclasses.fields(group):
        own = _own_default(field) if given is None else getattr(given, field.name)
        label = f"{name}{'[]' if listed else ''}.{yaml_name(field.name)}"
        found |= _flat(label, hints[field.name], own)
    return found or {name: default}


def _own_default(field: "dataclasses.Field[Any]") -> Any:
    if callable(field.default_factory):
        return field.default_factory()
    return REQUIRED if field.default is dataclasses.MISSING else field.default


def _group(annotation: Any) -> tuple[Any, bool]:
    """The group of parameters in an annotation, and whether it stands in a list; None without."""
    if hasattr(annotation, "__pydantic_config__"):
        return annotation, False
    listed = typing.get_origin(annotation) in {tuple, list}
    for part in typing.get_args(annotation):
        group, _ = _group(part)
        if group is not None:
            return group, listed
    return None, False


def _equal(ours: Any, theirs: Any) -> bool:
    value = _plain(ours)
    if isinstance(theirs, str) and isinstance(value, float | int) and theirs[:1].isdigit():
        return value == seconds(theirs)
    return isinstance(value, bool) == isinstance(theirs, bool) and value == theirs


def _plain(value: Any) -> Any:
    """A default as the data file has it."""
    if isinstance(value, Enum):
        return value.value
    empty = value is None or (not isinstance(value, bool | int | float) and not value)
    return NONE if empty else value


def _shown(default: Any) -> str:
    value = _plain(default)
    if value == REQUIRED:
        return "**required**"
    if isinstance(value, bool):
        return str(value).lower()
    return "-" if value == NONE else f"{value:g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    PAGE.write_text(page())
