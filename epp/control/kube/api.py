"""One connection's worth of the API server's HTTP: lists and watches, and why they fail."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import msgspec

from .access import Access
from .reflection import Failed

CONNECT_S = 5.0
LIST_S = 60.0
MAX_PAGE_BYTES = 128 * 2**20
MAX_LINE_BYTES = 8 * 2**20
"""An object has at most 1.5 MiB in the server's own store."""
MAX_STATUS_BYTES = 64 * 2**10


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """What is listed and watched: one kind, in one namespace, by labels or a name."""

    group: str
    """Empty: the core group."""
    version: str
    plural: str
    namespace: str
    """Empty: of the whole cluster."""
    labels: str = ""
    name: str = ""

    @property
    def path(self) -> str:
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        place = f"/namespaces/{self.namespace}" if self.namespace else ""
        return f"{root}{place}/{self.plural}"

    @property
    def selectors(self) -> dict[str, str]:
        asked = {"labelSelector": self.labels, "fieldSelector": ""}
        if self.name:
            asked["fieldSelector"] = f"metadata.name={self.name}"
        return {key: value for key, value in asked.items() if value}


class Unanswered(Exception):
    """No answer, or none that could be used. The message is for people."""


class Refused(Exception):
    """An answer with an error status. The message says what was asked, and what to do."""

    def __init__(self, code: int, message: str, *, retry_after_s: float, typed: bool) -> None:
        """`typed`: the server said it with a `Status`, which for 404 means that the kind exists."""
        super().__init__(message)
        self.code = code
        self.retry_after_s = retry_after_s
        self.typed = typed


class Api:
    """Asks the server. Belongs to one event loop; `close` it."""

    def __init__(self, access: Access, *, connect_s: float = CONNECT_S) -> None:
        self.access = access
        self._connect_s = connect_s
        self._renew = False
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=64, ssl=access.tls or True),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=True,
            read_bufsize=2**20,
        )

    async def close(self) -> None:
        await self._session.close()

    async def listed(self, resource: Resource, query: Mapping[str, str]) -> bytes:
        """One page. Raises Unanswered, Refused."""
        timeout = aiohttp.ClientTimeout(total=LIST_S, sock_connect=self._connect_s)
        async with self._asked("list", resource, query, timeout) as response:
            return await _limited(response, MAX_PAGE_BYTES)

    @asynccontextmanager
    async def watched(
        self, resource: Resource, query: Mapping[str, str], *, silent_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Lines of a watch until the server ends it. Raises Unanswered, also when nothing at all
        came for `silent_s`: then nobody is there any more; Refused."""
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=self._connect_s, sock_read=silent_s
        )
        async with self._asked("watch", resource, query, timeout) as response:
            yield _lines(response)

    @asynccontextmanager
    async def _asked(
        self,
        verb: str,
        resource: Resource,
        query: Mapping[str, str],
        timeout: aiohttp.ClientTimeout,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        url = f"{self.access.url}{resource.path}"
        try:
            headers = await self.access.identity.headers(renewed=self._renew)
            async with self._session.get(
                url,
                params={**query, **resource.selectors},
                headers={"Accept": "application/json", **headers},
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                self._renew = response.status == 401
                if response.status != 200:
                    raise await _refused(verb, resource, response)
                yield response
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            said = str(error) or type(error).__name__
            raise Unanswered(f"cannot {verb} {resource.plural}: {said}") from error


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Whole lines only: half a line at the end is dropped, and seen again by the next watch."""
    held = bytearray()
    async for piece in response.content.iter_any():
        held += piece
        if b"\n" in piece:
            *whole, rest = bytes(held).split(b"\n")
            held = bytearray(rest)
            for line in whole:
                if line:
                    yield line
        if len(held) > MAX_LINE_BYTES:
            raise Unanswered(f"a line of a watch has more than {MAX_LINE_BYTES} bytes")


async def _limited(response: aiohttp.ClientResponse, limit: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in response.content.iter_any():
        size += len(piece)
        if size > limit:
            raise Unanswered(f"an answer has more than {limit} bytes")
        pieces.append(piece)
    return b"".join(pieces)


async def _refused(verb: str, resource: Resource, response: aiohttp.ClientResponse) -> Refused:
    body = await _limited(response, MAX_STATUS_BYTES)
    try:
        said = msgspec.json.decode(body, type=Failed).message
        typed = True
    except ValueError:
        said, typed = body[:200].decode(errors="replace").strip(), False
    group = resource.group or "core"
    place = f"in namespace {resource.namespace}" if resource.namespace else "of the cluster"
    what = f"{verb} {resource.plural} ({group}) {place}"
    match response.status:
        case 403:
            text = f"not allowed to {what}: grant our service account this verb in a Role"
        case 401:
            text = f"not known to the API server, to {what}: the token is refused"
        case _:
            text = f"cannot {what}: {response.status} {said}"
    return Refused(
        response.status,
        text,
        retry_after_s=_retry_after(response.headers.get("Retry-After", "")),
        typed=typed,
    )


def _retry_after(text: str) -> float:
    """Seconds, at most a minute; 0 for what is no number."""
    return min(60.0, float(text)) if text.isdigit() else 0.0
