"""The endpoints file: what users write, read strictly. Pure.

    endpoints:
      - name: engine-0
        address: 127.0.0.1
        port: 8000
        labels: {llm-d.ai/role: decode}

Every fault is a ConfigError with `file:line:column` and what to do. Picker and sidecars read the
same file, so that both agree on who belongs to the pool.
"""

import ipaddress
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

from . import located
from .located import Located
from .values import matching

MAX_ENDPOINTS = 1024
ROLE_LABEL = "llm-d.ai/role"
"""Which part of a request an endpoint takes; see `framework.Role`."""
OF_PLAIN = ("kvEventsPort", "kvReplayPort", "kvEventsTopic", "dpRank")
"""What only an entry without a sidecar may say."""

Name = Annotated[
    str,
    matching(
        r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?",
        "at most 253 letters, digits, '.', '_' and '-', the first and the last a letter or digit",
    ),
]
Port = Annotated[int, Field(ge=1, le=65535)]
EventsPort = Annotated[int, Field(ge=0, le=65535)]


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
    kvEventsPort: EventsPort | None = None  # noqa: N815 - the name in the file format
    """Without a sidecar: TCP port of the KV events of the engine's first rank; 0: of none. As
    `--kv-events-port` says when absent."""
    kvReplayPort: EventsPort | None = None  # noqa: N815 - the name in the file format
    """Where it says them again, likewise."""
    kvEventsTopic: Annotated[str, Field(max_length=1024)] | None = None  # noqa: N815 - likewise
    """How the topics of its events begin, likewise."""
    dpRank: Annotated[int, Field(ge=0, le=1023)] | None = None  # noqa: N815 - likewise
    """Without a sidecar: data parallel rank of the endpoint, whose ports of KV events are those of
    the first one plus it."""
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


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries of one good file, in order; identities and addresses are distinct."""

    entries: tuple[EndpointEntry, ...]
    _located: Located

    def at(self, number: int, *path: str) -> str:
        """`file:line:column` of a part of an entry."""
        return self._located.at(("endpoints", number, *path))


def parse_entries(text: bytes, where: str) -> Entries:
    """Read a file's text; `where` names it in errors. Raises ConfigError."""
    file = located.read(text, where, empty="is empty; write `endpoints: []` for an empty pool")
    parsed = located.checked(EndpointsFile, file)
    seen: dict[object, int] = {}
    for number, entry in enumerate(parsed.endpoints):
        _check_events(file, number, entry)
        identity = (entry.identity, entry.port)
        for what, key in (("identity", identity), ("address", f"{entry.host}:{entry.port}")):
            if key in seen:
                raise file.fault(
                    ("endpoints", number),
                    f"has the same {what} as entry {seen[key] + 1}; each endpoint stands once",
                )
            seen[key] = number
    return Entries(tuple(parsed.endpoints), file)


def _check_events(file: Located, number: int, entry: EndpointEntry) -> None:
    """Who follows an engine's KV events is said once: its sidecar has flags for that."""
    said = [name for name in OF_PLAIN if getattr(entry, name) is not None]
    if entry.sidecar and said:
        raise file.fault(
            ("endpoints", number, said[0]),
            "is for an engine without a sidecar: add `sidecar: false`, or tell it to the sidecar",
        )
