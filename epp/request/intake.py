"""What an ext_proc stream takes in: headers, the subset hint, and a bounded body. No I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from google.protobuf.struct_pb2 import Struct, Value

from epp import protocol
from epp._pb import extproc_pb2 as pb
from epp.errors import TooLarge

_OWNED = frozenset((*protocol.ROUTING_HEADERS, *protocol.GATEWAY_HEADERS))
_STATUS = (":status", "status")
_READ = _OWNED.union(_STATUS, ("content-type", "content-encoding"))


def header_map(headers: pb.HeaderMap) -> dict[str, str]:
    """Lower-case names to values; repeated headers joined by a comma.

    `raw_value` counts before `value` (A22). Bytes beyond ASCII become the code points of the
    same number, so nothing is lost and nothing can fail.
    """
    found: dict[str, str] = {}
    for header in headers.headers:
        name = header.key.lower()
        value = _text(header)
        found[name] = f"{found[name]},{value}" if name in found else value
    return found


def _text(header: pb.HeaderValue) -> str:
    raw = header.raw_value
    return raw.decode("latin-1") if raw else header.value


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What the headers of an answer say to us."""

    status: int = 0
    """From `:status` (Envoy) or `status`; 0 when there is none."""
    content_type: str = ""
    content_encoding: str = ""
    owned: tuple[str, ...] = ()
    """Names in it that belong to the picker and its gateway: no engine may speak for them."""


def answer_head(headers: pb.HeaderMap) -> AnswerHead:
    """Read the headers of an answer; the first of several `:status` counts."""
    status, kind, encoding = 0, "", ""
    owned: list[str] = []
    for header in headers.headers:
        name = header.key.lower()
        if name not in _READ:
            continue
        if name in _STATUS:
            text = header.raw_value or header.value.encode()
            if not status and text.isdigit() and len(text) == 3:
                status = int(text)
        elif name == "content-type":
            kind = _text(header)
        elif name == "content-encoding":
            # Several of them are a list.
            encoding = f"{encoding},{_text(header)}" if encoding else _text(header)
        else:
            owned.append(name)
    return AnswerHead(status, kind, encoding, tuple(owned))


def subset_hint(metadata: Mapping[str, Struct]) -> tuple[str, ...] | None:
    """Endpoints that the gateway allows, from one message's filter metadata.

    A list, a comma-separated string, and a list whose items hold commas all count. None: the
    hint is absent, everybody may serve. A hint that names nobody or cannot be read is empty:
    it never widens to the whole pool (B16).
    """
    if protocol.SUBSET_NAMESPACE not in metadata:
        return None
    fields = metadata[protocol.SUBSET_NAMESPACE].fields
    if protocol.SUBSET_HINT not in fields:
        return None
    hint = fields[protocol.SUBSET_HINT]
    items = hint.list_value.values if hint.HasField("list_value") else [hint]
    return tuple(part for item in items for part in _parts(item))


def _parts(item: Value) -> list[str]:
    stripped = (part.strip() for part in item.string_value.split(","))
    return [part for part in stripped if part]


def served_endpoint(metadata: Mapping[str, Struct]) -> str | None:
    """The endpoint that truly served, if the gateway says so; empty: its metadata says nothing."""
    if protocol.LB_NAMESPACE not in metadata:
        return None
    fields = metadata[protocol.LB_NAMESPACE].fields
    if protocol.DESTINATION_SERVED not in fields:
        return ""
    return fields[protocol.DESTINATION_SERVED].string_value


@dataclass(slots=True)
class ByteBudget:
    """Bytes of request bodies that one process may hold at once, shared by all its streams."""

    total: int
    used: int = 0

    def take(self, count: int) -> bool:
        """Reserve `count` bytes, or change nothing and say no."""
        if self.used + count > self.total:
            return False
        self.used += count
        return True

    def give(self, count: int) -> None:
        """Return bytes that were taken."""
        self.used -= count


@dataclass(slots=True)
class BodyIntake:
    """One request body: bounded by `limit` itself and by the process's `budget`."""

    limit: int
    budget: ByteBudget
    _pieces: list[bytes] = field(default_factory=list[bytes], init=False)
    _held: int = field(default=0, init=False)

    @property
    def held(self) -> int:
        """Bytes that it holds."""
        return self._held

    def declared(self, content_length: str | None) -> TooLarge | None:
        """Refuse a body that announces itself as too long."""
        if content_length is None or not (content_length.isascii() and content_length.isdigit()):
            return None
        # A number of many digits is not worth a big integer.
        if len(content_length.lstrip("0")) > 18 or int(content_length) > self.limit:
            return self._too_large()
        return None

    def add(self, piece: bytes) -> TooLarge | None:
        """Keep a piece; a body that outgrows its limit is let go at once (A03)."""
        if self._held + len(piece) > self.limit:
            self.release()
            return self._too_large()
        if not self.budget.take(len(piece)):
            self.release()
            return TooLarge("the gateway holds too many request bytes just now; try again later")
        self._held += len(piece)
        if piece:
            self._pieces.append(piece)
        return None

    def whole(self) -> bytes:
        """All pieces as one. They stay in the budget until `release`."""
        body = b"".join(self._pieces)
        self._pieces.clear()
        return body

    def release(self) -> None:
        """Let go of everything. May be called at any time, more than once."""
        self._pieces.clear()
        self.budget.give(self._held)
        self._held = 0

    def _too_large(self) -> TooLarge:
        return TooLarge(f"the request body is larger than {self.limit} bytes; send a smaller one")
