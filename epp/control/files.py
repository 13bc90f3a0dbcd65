"""Endpoints from a watched YAML or JSON file, for pools without Kubernetes.

    endpoints:
      - name: engine-0
        address: 127.0.0.1
        port: 8000
        labels: {llm-d.ai/role: decode}

Every fault is a ConfigError with `file:line:column` and what to do; a bad file never replaces a
good list. The watch looks at the path again and again, so it follows edits, renames and the
symlink swaps of a mounted ConfigMap alike.
"""

import asyncio
import difflib
import ipaddress
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
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
from epp.framework import EndpointId, PoolId, Role
from epp.state.endpoints import Member

MAX_BYTES = 1 << 20
MAX_ENDPOINTS = 1024
ROLE_LABEL = "llm-d.ai/role"
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


Warn = Callable[[str], None]


def load_endpoints(path: Path | str, pool: PoolId, *, warn: Warn = lambda _: None) -> list[Member]:
    """Read the file once. Raises ConfigError; `warn` gets sentences about what was let pass."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror or error}") from error
    return parse_endpoints(text, str(path), pool, warn=warn)


def parse_endpoints(
    text: bytes, where: str, pool: PoolId, *, warn: Warn = lambda _: None
) -> list[Member]:
    """Like `load_endpoints`, for text already read; `where` names it in errors."""
    if len(text) > MAX_BYTES:
        raise ConfigError(where, f"is larger than {MAX_BYTES} bytes")
    root = _compose(text, where)
    marks = _Marks(where, root)
    try:
        parsed = EndpointsFile.model_validate(marks.value)
    except ValidationError as error:
        raise _config_error(error, marks) from error
    members: list[Member] = []
    seen: dict[object, int] = {}
    for number, entry in enumerate(parsed.endpoints):
        member = _member(entry, pool, marks, number, warn)
        for what, key in (("identity", member.id), ("address", member.address)):
            if key in seen:
                raise ConfigError(
                    marks.at(("endpoints", number)),
                    f"has the same {what} as entry {seen[key] + 1}; each endpoint stands once",
                )
            seen[key] = number
        members.append(member)
    return members


async def watch(
    path: Path | str,
    pool: PoolId,
    *,
    interval_s: float = 0.5,
    settle_s: float = 0.05,
    on_error: Callable[[ConfigError], None],
    warn: Warn = lambda _: None,
) -> AsyncIterator[list[Member]]:
    """The file's list, and each later one that differs. Looks at it every `interval_s`, for ever.

    A file that is missing or bad keeps the last good list: `on_error` is told once per fault.
    A change is read once it has stood still for `settle_s`, so that half a file is not read.
    """
    seen: object = None
    given: list[Member] | None = None
    while True:
        mark = await asyncio.to_thread(_signature, path)
        if mark != seen:
            await asyncio.sleep(settle_s)
            if mark != await asyncio.to_thread(_signature, path):
                continue
            seen = mark
            try:
                members = await asyncio.to_thread(load_endpoints, path, pool, warn=warn)
            except ConfigError as error:
                on_error(error)
            else:
                if members != given:
                    given = members
                    yield members
        await asyncio.sleep(interval_s)


def _signature(path: Path | str) -> tuple[int, ...]:
    """Changes whenever the file behind the path does; empty when there is none."""
    try:
        stat = os.stat(path)
    except OSError:
        return ()
    return (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


def _member(entry: EndpointEntry, pool: PoolId, marks: "_Marks", number: int, warn: Warn) -> Member:
    host = f"[{entry.address}]" if ":" in entry.address else entry.address
    label = entry.labels.get(ROLE_LABEL, "")
    try:
        role = Role(label)
    except ValueError:
        role = Role.UNLABELLED
        place = marks.at(("endpoints", number, "labels", ROLE_LABEL))
        known = ", ".join(filter(None, Role))
        warn(f"{place} no role is called {label!r} (known: {known}); serving whole requests")
    return Member(
        id=EndpointId(pool, entry.uid or f"{entry.namespace}/{entry.name}", entry.port),
        address=f"{host}:{entry.port}",
        role=role,
        labels=entry.labels,
        metrics_url=f"http://{host}:{entry.metricsPort or entry.port}/metrics",
        has_sidecar=entry.sidecar,
    )


Location = tuple[int | str, ...]


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
