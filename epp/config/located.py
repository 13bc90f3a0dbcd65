"""A YAML or JSON text as a plain value that knows where each of its parts stands. Pure.

Every fault of what users write becomes one `ConfigError` with `file:line:column`, the value and
what to do; all faults of a file are told at once, the first says where.
"""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from epp.errors import ConfigError

MAX_BYTES = 1 << 20
_MAX_PARTS = 200_000
_MAX_DEPTH = 32
_MAX_TOLD = 5
_MAX_QUOTED = 64
_MAX_LISTED = 16
_LEAST_PART = 3
_MERGE = "tag:yaml.org,2002:merge"
_TIME = "tag:yaml.org,2002:timestamp"
_INT = "tag:yaml.org,2002:int"
_PLAIN = {f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str")}
_POWER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Location = tuple[int | str, ...]
_M = TypeVar("_M", bound=BaseModel)
_T = TypeVar("_T")


class Located:
    """The value of a text, and the place of each part of it."""

    def __init__(self, where: str, root: yaml.Node) -> None:
        self.where = where
        self._places: dict[Location, yaml.Mark] = {}
        self._parts = 0
        self._scalars = yaml.constructor.SafeConstructor()
        self.value = self._build(root, ())

    def at(self, path: Location) -> str:
        """`file:line:column` of the nearest part that exists."""
        while path not in self._places and path:
            path = path[:-1]
        mark = self._places[path]
        return f"{self.where}:{mark.line + 1}:{mark.column + 1}"

    def fault(self, path: Location, what: str) -> ConfigError:
        return ConfigError(self.at(path), what)

    def _build(self, node: yaml.Node, path: Location) -> Any:
        self._places.setdefault(path, node.start_mark)
        self._parts += 1
        if self._parts > _MAX_PARTS or len(path) > _MAX_DEPTH:  # also where aliases multiply
            raise self.fault(path, "is nested too deeply, or has too many parts")
        if isinstance(node, yaml.SequenceNode):
            return [self._build(item, (*path, number)) for number, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            return dict(self._members(node, path))
        assert isinstance(node, yaml.ScalarNode)
        try:
            return self._scalar(node)
        except (yaml.YAMLError, ValueError, OverflowError) as error:
            why = getattr(error, "problem", None) or error
            raise self.fault(path, f"cannot be read as a value: {why}") from error

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        """As the reference's YAML reads it: dates and `1:30` are text, `1e3` is a number."""
        if node.tag == _TIME or (node.tag == _INT and ":" in node.value):
            return node.value
        if node.tag not in _PLAIN:
            raise ValueError("it has a tag that is not plain YAML")
        if not node.style and _POWER.fullmatch(node.value):
            return float(node.value)
        return self._scalars.construct_document(node)

    def _members(self, node: yaml.MappingNode, path: Location) -> Iterator[tuple[str, Any]]:
        seen: set[str] = set()
        merged: list[yaml.Node] = []
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                merged.append(value_node)
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                raise ConfigError(self._mark(key_node), "a name must be a plain word")
            key = str(key_node.value)
            if key in seen:
                raise ConfigError(
                    self._mark(key_node), f"{key[:_MAX_QUOTED]!r} stands here a second time"
                )
            seen.add(key)
            self._places[*path, key] = key_node.start_mark
            yield key, self._build(value_node, (*path, key))
        for key, value in self._merged(merged, path):
            if key not in seen:
                seen.add(key)
                yield key, value

    def _merged(self, nodes: list[yaml.Node], path: Location) -> Iterator[tuple[str, Any]]:
        """What `<<` takes from other mappings, first come first served."""
        for node in nodes:
            parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
            for part in parts:
                if not isinstance(part, yaml.MappingNode):
                    raise ConfigError(self._mark(part), "`<<` takes a mapping")
                yield from self._build(part, (*path, "<<")).items()

    def _mark(self, node: yaml.Node) -> str:
        return f"{self.where}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"


def read(text: bytes, where: str, *, empty: str = "is empty") -> Located:
    """Read a text; `where` names it in errors, `empty` says what is wrong with nothing at all.

    Raises ConfigError.
    """
    root: yaml.Node | None = _composed(text, where, lambda loader: loader.get_single_node())
    if root is None:
        raise ConfigError(f"{where}:1:1", empty)
    return Located(where, root)


def documents(text: bytes, where: str) -> Iterator[Located]:
    """Each document of a text in which `---` divides several, but for empty ones.

    Raises ConfigError.
    """
    for root in _composed(text, where, _every_node):
        document = Located(where, root)
        if document.value is not None:
            yield document


def checked(model: type[_M], located: Located, path: Location = ()) -> _M:
    """The part at `path`, which exists, as `model`. Raises ConfigError with every fault in it."""
    value = located.value
    for part in path:
        value = value[part]
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _all_faults(error, model, located, path) from error


def _every_node(loader: Any) -> list[yaml.Node]:
    nodes: list[yaml.Node] = []
    while loader.check_node():
        nodes.append(loader.get_node())
    return nodes


def _composed(text: bytes, where: str, take: Callable[[Any], _T]) -> _T:
    """What `take` takes of a YAML loader of the text. Raises ConfigError."""
    if len(text) > MAX_BYTES:
        raise ConfigError(where, f"is larger than {MAX_BYTES} bytes")
    try:
        loader = _Loader(text)
        try:
            return take(loader)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{where}:{mark.line + 1}:{mark.column + 1}" if mark else where
        raise ConfigError(place, f"is neither YAML nor JSON: {error.problem}") from error
    except (yaml.YAMLError, UnicodeError, RecursionError) as error:
        line = text.count(b"\n", 0, getattr(error, "position", 0) or 0) + 1
        odd = isinstance(error, yaml.reader.ReaderError | UnicodeError)
        why = "it has a character that they do not allow" if odd else type(error).__name__
        what = f"is neither YAML nor JSON: {why}"
        raise ConfigError(f"{where}:{line}:1", what) from error


def _all_faults(
    error: ValidationError, model: type[BaseModel], located: Located, path: Location
) -> ConfigError:
    found = [
        (located.at((*path, *fault["loc"])), _sentence(fault, model)) for fault in error.errors()
    ]
    more = "".join(f"\n{place} {what}" for place, what in found[1:_MAX_TOLD])
    if len(found) > _MAX_TOLD:
        more += f"\nand {len(found) - _MAX_TOLD} more"
    return ConfigError(found[0][0], found[0][1] + more)


def _sentence(fault: Any, model: type[BaseModel]) -> str:
    path: Location = fault["loc"]
    name = str(path[-1]) if path else "the file"
    match fault["type"]:
        case "extra_forbidden":
            return unknown("field", name, _known_names(model, path[:-1]))
        case "missing":
            return f"{name!r} is missing"
        case _:
            message = str(fault["msg"]).removeprefix("Value error, ")
            if fault["type"] in {"model_type", "dict_type"}:
                message = "must be a mapping"
            message = f"{name!r}: {message[:1].lower()}{message[1:]}"
            value = fault["input"]
            plain = isinstance(value, (str, int, float, bool)) and len(str(value)) <= _MAX_QUOTED
            return f"{message}, got {value!r}" if plain else message


def unknown(what: str, name: str, known: Mapping[str, object] | list[str]) -> str:
    """A sentence for a name that nobody knows, with the nearest one that somebody does."""
    name = name[:_MAX_QUOTED]
    near = difflib.get_close_matches(name, known, n=1)
    if not near and len(name) >= _LEAST_PART:
        near = [one for one in known if name in one]
    if near:
        return f"unknown {what} {name!r}; did you mean {near[0]!r}?"
    listed = ", ".join([*known][:_MAX_LISTED]) or "none"
    more = f" and {len(known) - _MAX_LISTED} more" if len(known) > _MAX_LISTED else ""
    return f"unknown {what} {name!r}; known: {listed}{more}"


def _known_names(model: type[BaseModel], path: Location) -> list[str]:
    """Fields of the model that stands at `path`, as users spell them."""
    kind: Any = model
    for part in path:
        if isinstance(part, str):
            fields = _model_in(kind).model_fields
            named = [f for n, f in fields.items() if part in {n, f.alias}]
            kind = named[0].annotation if named else kind
    return [field.alias or name for name, field in _model_in(kind).model_fields.items()]


def _model_in(kind: Any) -> type[BaseModel]:
    """The model inside of an annotation such as `list[Model] | None`."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    for part in get_args(kind):
        if getattr(part, "__origin__", None) is not Literal and (part is not kind):
            try:
                return _model_in(part)
            except LookupError:
                continue
    raise LookupError(kind)
