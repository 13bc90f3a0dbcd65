"""A client's request as far as its head says, whoever read it."""

from collections.abc import Sequence

from sidecar.transfer.targets import Target

from .headers import RawHeaders
from .shapes import RequestShape

_NOT_MADE: dict[bytes, list[bytes]] = {}


class Incoming:
    """Request line and fields, and where they came in.

    Never changed once it is served; its connection says before where and when it came.
    """

    __slots__ = (
        "_fields",
        "_index",
        "arrived",
        "at",
        "has_body",
        "http11",
        "keep_alive",
        "length",
        "method",
        "on_leg_port",
        "peer",
        "shape",
        "target",
        "worth",
    )

    def __init__(
        self,
        *,
        method: str,
        target: str,
        fields: RawHeaders | None = None,
        shape: RequestShape | None = None,
        worth: Sequence[bytes] = (),
        http11: bool = True,
        has_body: bool = False,
        length: int | None = None,
        keep_alive: bool = True,
        at: Target | None = None,
        peer: str = "",
        on_leg_port: bool = False,
    ) -> None:
        """Either `fields` is given, or the `shape` of their names and what each is `worth`."""
        self.method = method
        self.target = target
        """Path and query as they were on the wire."""
        self.shape = shape
        """Of the names of `fields`, from a reader that has looked it up."""
        self.worth = worth
        """The values of `fields`, beside a shape."""
        self.http11 = http11
        """Whether the client speaks HTTP/1.1; otherwise it is 1.0."""
        self.has_body = has_body
        self.length = length
        """Bytes of the body as announced; None when chunked, or without a body."""
        self.keep_alive = keep_alive
        """Whether another request may follow on the connection, as far as the client says."""
        self.at = at
        """Address and port that the connection came in at: where this sidecar is a member."""
        self.peer = peer
        self.on_leg_port = on_leg_port
        self.arrived: float | None = None
        """When the head came, by the service's clock; None: when it begins to be served."""
        self._fields = fields
        self._index = _NOT_MADE

    @property
    def fields(self) -> RawHeaders:
        """Names and values as they were sent, in order."""
        fields = self._fields
        if fields is None:
            names = () if self.shape is None else self.shape.names
            fields = self._fields = list(zip(names, self.worth, strict=True))
        return fields

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]

    def first(self, name: bytes) -> bytes | None:
        """The first value of a field as it was sent. `name` in lower case."""
        shape = self.shape
        if shape is not None:
            at = shape.at.get(name)
            return None if at is None else self.worth[at[0]]
        found = self.index.get(name)
        return None if found is None else found[0]

    def values(self, name: str) -> tuple[str, ...]:
        """All values of a field, in order. `name` in lower case."""
        if self.shape is not None:
            at = self.shape.at.get(name.encode(), ())
            return tuple([self.worth[number].decode("latin-1") for number in at])
        found = self.index.get(name.encode())
        return () if found is None else tuple(value.decode("latin-1") for value in found)

    def value(self, name: str) -> str | None:
        """The first value of a field."""
        found = self.first(name.encode())
        return None if found is None else found.decode("latin-1")

    @property
    def index(self) -> dict[bytes, list[bytes]]:
        """Values by name in lower case."""
        if self._index is _NOT_MADE:
            index: dict[bytes, list[bytes]] = {}
            for name, value in self.fields:
                index.setdefault(name.lower(), []).append(value)
            self._index = index
        return self._index
