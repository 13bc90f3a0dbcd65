"""Which endpoint a client's session belongs to, for plugins that keep sessions together.

Two strategies (of the Gateway API Inference Extension's llm-d router). With a *token* the answer
carries a header that names the endpoint, and the client sends it back with the next request;
nothing is kept here. With a *session id* the client names its session and the endpoint is
remembered here, for a time and for a bounded number of sessions, by a hash of the name.

Either is a hint: it chooses among the candidates, and whatever names none of them is ignored (fault
B18). Such plugins derive from `SessionKeeper`, whose constructor is their parameters:

- `strategy` (`encoded_endpoint_header`; or `session_id`).
- `profileName` (none): keep sessions of the endpoint that this profile chose, such as `prefill`, in
  place of the destination's. Each profile takes a plugin and a header of its own.
- `encodedEndpointHeaderConfig.header` (`x-session-token`): where the token stands.
- `sessionIdConfig.sources` (header `x-session-id`): where the session's name stands, the first that
  is there counts. Each has `header`, or `attribute: SessionIDDataKey` for what a
  `session-id-producer` reads.
- `sessionIdConfig.evictionTtlSeconds` (300; above 0): how long a session that sends nothing is
  remembered.
- `sessionIdConfig.evictionSweepSeconds` (10; above 0): of the reference; what is over is forgotten
  at the next request here, without a sweep.
"""

import base64
import binascii
import re
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Literal, TypeVar

from .candidates import Candidates
from .plugins import parameters
from .types import Decision, Endpoint, EndpointId, Request

K = TypeVar("K")
V = TypeVar("V")
Strategy = Literal["encoded_endpoint_header", "session_id"]

MAX_SESSIONS = 100_000
"""Sessions remembered by one plugin; beyond, the one that was silent longest is forgotten."""
MAX_REQUESTS = 10_000
"""Requests under way that one plugin remembers something of."""
MAX_TOKEN = 1024
"""Characters of a token; our own are much shorter."""

SESSION_ATTRIBUTE = "SessionIDDataKey"
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*")


def header_name(text: str, parameter: str) -> str:
    """A header's name as requests have it. Raises ValueError for what cannot be one."""
    name = text.strip().lower()
    if not _NAME.fullmatch(name):
        raise ValueError(f"{parameter} must be the name of a header, got {text!r}")
    return name


@parameters
class TokenSettings:
    """See the module."""

    header: str = "x-session-token"


@parameters
class SessionSource:
    """See the module. Exactly one of `header` and `attribute`."""

    header: str = ""
    attribute: str = ""
    producer: str = ""
    """Of the reference; the attribute has one producer here."""

    def __post_init__(self) -> None:
        if bool(self.header) == bool(self.attribute):
            raise ValueError("exactly one of header and attribute must be set")
        if self.header:
            header_name(self.header, "header")
        elif self.attribute != SESSION_ATTRIBUTE:
            raise ValueError(f"attribute must be {SESSION_ATTRIBUTE!r}; or name a header")


@parameters
class SessionSettings:
    """See the module."""

    sources: tuple[SessionSource, ...] = (SessionSource(header="x-session-id"),)
    eviction_ttl_seconds: float = 300.0
    eviction_sweep_seconds: float = 10.0

    def __post_init__(self) -> None:
        if not self.sources:
            raise ValueError("sources must name one at least")
        for name in ("eviction_ttl_seconds", "eviction_sweep_seconds"):
            if not 0.0 < getattr(self, name) < float("inf"):
                raise ValueError("evictionTtlSeconds and evictionSweepSeconds must be above 0")


_TOKENS = TokenSettings()
_SESSIONS = SessionSettings()


class SessionKeeper:
    """See the module. A `Watcher`, a `Follower` and a `Marker`."""

    def __init__(
        self,
        *,
        strategy: Strategy = "encoded_endpoint_header",
        profile_name: str = "",
        encoded_endpoint_header_config: TokenSettings = _TOKENS,
        session_id_config: SessionSettings = _SESSIONS,
    ) -> None:
        self._profile = profile_name
        self._by_token = strategy == "encoded_endpoint_header"
        self._header = header_name(encoded_endpoint_header_config.header, "header")
        self._sources = [
            header_name(s.header, "header") if s.header else None for s in session_id_config.sources
        ]
        self._ttl_s = session_id_config.eviction_ttl_seconds
        self._bound: OrderedDict[int, tuple[EndpointId, float]] = OrderedDict()
        """Endpoint and last request of each session, the one silent longest first."""
        self._away: OrderedDict[str, None] = OrderedDict()
        """Requests whose session's endpoint was no candidate."""
        self._tokens: OrderedDict[str, str] = OrderedDict()
        """Tokens for the answers to requests under way, where they do not name the destination."""

    def rows(self, request: Request, candidates: Candidates) -> list[int]:
        """Candidates that the request's session belongs to; empty: it prefers nobody."""
        if self._by_token:
            name, port = _named(request.headers.get(self._header, ""))
        else:
            bound = self._endpoint(request)
            if bound is None:
                return []
            name, port = bound.name, bound.port
        found = [
            row
            for row, ident in enumerate(candidates.ids)
            if ident.name == name and port in (None, ident.port)
        ]
        if not (found or self._by_token):
            _remember(self._away, request.id, None, MAX_REQUESTS)
        return found

    def chosen(self, request: Request, decision: Decision, /) -> None:
        picked = self._picked(decision)
        if self._by_token:
            if self._profile and picked is not None:
                _remember(self._tokens, request.id, _token(picked), MAX_REQUESTS)
            return
        session = self._session(request)
        away = request.id in self._away
        self._away.pop(request.id, None)
        if not session or picked is None:
            return
        bound = self._endpoint(request)
        if bound is None or bound == picked or away:
            _remember(self._bound, hash(session), (picked, request.at), MAX_SESSIONS)
        while self._over(next(iter(self._bound.values()))[1], request.at):
            self._bound.popitem(last=False)

    def served(self, request: Request, chosen: Endpoint, served: Endpoint, /) -> None:
        """What the session has cached is there now. One that is bound elsewhere than where this
        request was to go stays, as with `chosen`; a token names who served by itself."""
        if not self._by_token and self._endpoint(request) == chosen.id:
            bound = (served.id, request.at)
            _remember(self._bound, hash(self._session(request)), bound, MAX_SESSIONS)

    def removed(self, endpoints: Collection[EndpointId], /) -> None:
        """A session of one that is gone moves with its next request."""

    def marks(self, request: Request, served: Endpoint, /) -> Sequence[tuple[str, str]]:
        if not self._by_token:
            return ()
        token = self._tokens.pop(request.id, "") if self._profile else _token(served.id)
        return ((self._header, token),) if token else ()

    def _picked(self, decision: Decision) -> EndpointId | None:
        if self._profile in ("", decision.profile):
            return decision.chosen[0].id
        for stage in (decision.prefilling, decision.encoding):
            if stage.chosen and stage.profile == self._profile:
                return stage.chosen[0].id
        return None

    def _session(self, request: Request) -> str:
        for source in self._sources:
            found = request.session if source is None else request.headers.get(source, "").strip()
            if found:
                return found
        return ""

    def _endpoint(self, request: Request) -> EndpointId | None:
        session = self._session(request)
        bound = self._bound.get(hash(session)) if session else None
        return None if bound is None or self._over(bound[1], request.at) else bound[0]

    def _over(self, last: float, now: float) -> bool:
        return now - last > self._ttl_s


def _remember(known: "OrderedDict[K, V]", key: K, value: V, most: int) -> None:
    known[key] = value
    known.move_to_end(key)
    while len(known) > most:
        known.popitem(last=False)


def _token(ident: EndpointId) -> str:
    return base64.b64encode(f"{ident.name}:{ident.port}".encode()).decode()


def _named(token: str) -> tuple[str, int | None]:
    """Name and port in a token; empty where it is none. The reference's have no port."""
    if not token or len(token) > MAX_TOKEN:
        return "", None
    try:
        text = base64.b64decode(token, validate=True).decode()
    except (binascii.Error, ValueError):
        return "", None
    name, _, port = text.rpartition(":")
    if name and port.isascii() and port.isdigit() and len(port) <= 5:
        return name, int(port)
    return text, None
