"""The endpoints file: what users write, read strictly. Pure.

    endpoints:
      - name: engine-0
        address: 127.0.0.1
        port: 8000
        labels: {llm-d.ai/role: decode}

Every fault is a ConfigError with `file:line:column` and what to do. Picker and sidecars read the
same file, so that both agree on who belongs to the pool.
"""

import difflib
import ipaddress
from dataclasses import dataclass
from typing import Annotated, Any, cast

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
)

from epp.errors import ConfigError

MAX_BYTES = 1 << 20
MAX_ENDPOINTS = 1024
_MAX_PARTS = 200_000
_MAX_DEPTH = 8

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Name = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$")
]
Port = Annotated[int, Field(ge=1, le=65535)]


class EndpointEntry(BaseModel):
    """One entry of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Name
    namespace: Name = "default"
    uid: Name | None = None
    """Identity that does not come back; without it, `namespace/name` is the identity."""
    address: str
    port: Port
    labels: dict[str, str] = Field(default_factory=dict, max_length=64)
    metricsPort: Port | None = None  # noqa: N815 - the name in the file format
    """Port of the metrics page; the endpoint's own port when absent."""
    sidecar: bool = True
    legPort: Port | None = None  # noqa: N815 - the name in the file format
    """Where this one's sidecar takes prefill legs, in a pool that uses leg ports and no leg key;
    the asking sidecar's own leg port when absent."""

    @property
    def identity(self) -> str:
        """Name of the endpoint within the pool, but for its port."""
        return self.uid or f"{self.namespace}/{self.name}"

    @property
    def host(self) -> str:
        """The address as it stands before a port."""
        return f"[{self.address}]" if ":" in self.address else self.address

    @field_validator("address")
    @classmethod
    def _is_ip(cls, value: str) -> str:
        try:
            address = ipaddress.ip_address(value.strip("[]"))
        except ValueError:
            raise ValueError("must be an IPv4 or IPv6 address; names are not resolved") from None
        if address.is_unspecified or address.is_multicast or "%" in value:
            raise ValueError("must be the address of one endpoint, without a zone")
        return str(address)


class EndpointsFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    endpoints: list[EndpointEntry] = Field(max_length=MAX_ENDPOINTS)


Location = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries of one good file, in order; identities and addresses are distinct."""

    entries: tuple[EndpointEntry, ...]
    _marks: "_Marks"

    def at(self, number: int, *path: str) -> str:
        """`file:line:column` of a part of an entry."""
        return self._marks.at(("endpoints", number, *path))


def parse_entries(text: bytes, where: str) -> Entries:
    """Read a file's text; `where` names it in errors. Raises ConfigError."""
    if len(text) > MAX_BYTES:
        raise ConfigError(where, f"is larger than {MAX_BYTES} bytes")
    root = _compose(text, where)
    marks = _Marks(where, root)
    try:
        parsed = EndpointsFile.model_validate(marks.value)
    except ValidationError as error:
        raise _config_error(error, marks) from error
    seen: dict[object, int] = {}
    for number, entry in enumerate(parsed.endpoints):
        identity = (entry.identity, entry.port)
        for what, key in (("identity", identity), ("address", f"{entry.host}:{entry.port}")):
            if key in seen:
                raise ConfigError(
                    marks.at(("endpoints", number)),
                    f"has the same {what} as entry {seen[key] + 1}; each endpoint stands once",
                )
            seen[key] = number
    return Entries(tuple(parsed.endpoints), marks)


class _Marks:
    """The file's value, and where in the file each part of it stands."""

    def __init__(self, where: str, root: yaml.Node) -> None:
        self._where = where
        self._places: dict[Location, yaml.Mark] = {}
        self._parts = 0
        self._scalars = yaml.constructor.SafeConstructor()
        self.value = self._build(root, ())

    def at(self, path: Location) -> str:
        """`file:line:column` of the nearest part that exists."""
        while path not in self._places and path:
            path = path[:-1]
        mark = self._places[path]
        return f"{self._where}:{mark.line + 1}:{mark.column + 1}"

    def _build(self, node: yaml.Node, path: Location) -> Any:
        self._places.setdefault(path, node.start_mark)
        self._parts += 1
        if self._parts > _MAX_PARTS or len(path) > _MAX_DEPTH:  # also where aliases multiply
            raise ConfigError(self.at(path), "is nested too deeply, or has too many parts")
        if isinstance(node, yaml.SequenceNode):
            return [self._build(item, (*path, number)) for number, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            out: dict[str, Any] = {}
            for key_node, value_node in node.value:
                key = str(key_node.value)
                mark = key_node.start_mark
                if key in out:
                    place = f"{self._where}:{mark.line + 1}:{mark.column + 1}"
                    raise ConfigError(place, f"{key!r} stands here a second time")
                self._places[*path, key] = mark
                out[key] = self._build(value_node, (*path, key))
            return out
        return self._scalars.construct_document(node)


def _compose(text: bytes, where: str) -> yaml.Node:
    try:
        loader = _Loader(text)
        try:
            root = cast("yaml.Node | None", loader.get_single_node())
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{where}:{mark.line + 1}:{mark.column + 1}" if mark else where
        raise ConfigError(place, f"is neither YAML nor JSON: {error.problem}") from error
    except (yaml.YAMLError, UnicodeError, RecursionError) as error:
        raise ConfigError(where, f"is neither YAML nor JSON: {type(error).__name__}") from error
    if root is None:
        raise ConfigError(f"{where}:1:1", "is empty; write `endpoints: []` for an empty pool")
    return root


def _config_error(error: ValidationError, marks: _Marks) -> ConfigError:
    """All faults of one file; the first says where."""
    found = [(marks.at(fault["loc"]), _sentence(fault)) for fault in error.errors()]
    more = "".join(f"\n{place} {what}" for place, what in found[1:5])
    if len(found) > 5:
        more += f"\nand {len(found) - 5} more"
    return ConfigError(found[0][0], found[0][1] + more)


def _sentence(fault: Any) -> str:
    name = str(fault["loc"][-1]) if fault["loc"] else "the file"
    match fault["type"]:
        case "extra_forbidden":
            known = EndpointEntry.model_fields if len(fault["loc"]) > 1 else ["endpoints"]
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            return f"unknown field {name!r}; {hint}"
        case "missing":
            return f"{name!r} is missing"
        case _:
            message = str(fault["msg"]).removeprefix("Value error, ")
            return f"{name!r}: {message[:1].lower()}{message[1:]}"
