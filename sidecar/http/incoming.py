"""A client's request as far as its head says, whoever read it."""

from collections.abc import Sequence
from dataclasses import dataclass

from sidecar.transfer.targets import Target

from .headers import RawHeaders
from .shapes import RequestShape


@dataclass(slots=True, kw_only=True)
class Incoming:
    """Request line and fields, and where they came in. Never changed once it is made."""

    method: str
    target: str
    """Path and query as they were on the wire."""
    fields: RawHeaders
    http11: bool = True
    """Whether the client speaks HTTP/1.1; otherwise it is 1.0."""
    has_body: bool = False
    length: int | None = None
    """Bytes of the body as announced; None when chunked, or without a body."""
    at: Target | None = None
    """Address and port that the connection came in at: where this sidecar is a member."""
    peer: str = ""
    on_leg_port: bool = False
    arrived: float | None = None
    """When the head came, by the service's clock; None: when it begins to be served."""
    shape: RequestShape | None = None
    """Of the names of `fields`, from a reader that has looked it up."""
    worth: Sequence[bytes] = ()
    """The values of `fields`, beside a shape."""
    by_name: dict[bytes, list[bytes]] | None = None
    """Made when it is first needed; see `index`."""

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]

    def first(self, name: bytes) -> bytes | None:
        """The first value of a field as it was sent. `name` in lower case."""
        if self.shape is not None:
            return self.shape.first(name, self.worth)
        found = self.index.get(name)
        return None if found is None else found[0]

    def values(self, name: str) -> tuple[str, ...]:
        """All values of a field, in order. `name` in lower case."""
        if self.shape is not None and name.encode() not in self.shape.at:
            return ()
        found = self.index.get(name.encode())
        return () if found is None else tuple(value.decode("latin-1") for value in found)

    def value(self, name: str) -> str | None:
        """The first value of a field."""
        found = self.first(name.encode())
        return None if found is None else found.decode("latin-1")

    @property
    def index(self) -> dict[bytes, list[bytes]]:
        """Values by name in lower case."""
        index = self.by_name
        if index is None:
            index = self.by_name = {}
            for name, value in self.fields:
                index.setdefault(name.lower(), []).append(value)
        return index
