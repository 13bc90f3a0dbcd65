"""The server's HTTP: list, watch, get, create, put, patch, delete over what the store holds."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, Self

import yaml
from aiohttp import web

from . import discovery, failures, schemas
from .failures import Failure
from .faults import Faults
from .resources import NAMESPACES, Object, Resource
from .selectors import by_fields, by_labels
from .store import Store
from .watching import Watch, error_line

BOOKMARK_S = 60.0
VIEWER = "application/json"


@dataclass(frozen=True, slots=True)
class Place:
    """What a path names."""

    of: Resource
    namespace: str | None
    """None: all of them."""
    name: str
    """Empty: the collection."""
    part: str


class ApiServer:
    """Serves while its context is open; `stop` and `start` in between are a restart."""

    def __init__(
        self,
        *,
        wall: Callable[[], str] = lambda: "2026-01-31T12:00:00Z",
        chance: Random | None = None,
        tokens: Iterable[str] = (),
        tls: ssl.SSLContext | None = None,
        bookmark_s: float = BOOKMARK_S,
        judge: schemas.Judge | None = None,
    ) -> None:
        """`tokens`: who may come in; none: everybody. `judge`: see `Store`."""
        self.store = Store(wall=wall, chance=chance or Random(), judge=judge)
        self.faults = Faults()
        self.tokens = set(tokens)
        self.port = 0
        self._tls = tls
        self._bookmark_s = bookmark_s
        self._runner: web.AppRunner | None = None
        self._watches: dict[Watch, web.Request] = {}

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def watches(self) -> int:
        """Open now."""
        return len(self._watches)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """On the same port as before."""
        app = web.Application(client_max_size=8 * 2**20)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(
            self._runner, "127.0.0.1", self.port, ssl_context=self._tls, reuse_address=True
        )
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Every connection is cut, and the port refuses."""
        self.faults.thaw()
        self.reset_watches()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def end_watches(self) -> None:
        """As a server's own time-out does it: in order."""
        for watch in self._watches:
            watch.end()

    def reset_watches(self) -> None:
        """Cut their connections."""
        for request in list(self._watches.values()):
            if request.transport is not None:
                request.transport.abort()

    def define(self, definition: Object) -> None:
        """Install a CustomResourceDefinition."""
        resource = next(one for one in self.store.served if one.kind == "CustomResourceDefinition")
        self.store.create(resource, "", definition)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        try:
            given = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if self.tokens and given not in self.tokens:
                raise Failure(401, "Unauthorized", "Unauthorized")
            found = _discovered(self.store, request.path)
            if found is not None:
                return _json(found)
            place = _place(self.store, request.path)
            if place is None:
                return web.Response(status=404, text="404 page not found\n")
            return await self._do(request, place)
        except Failure as failure:
            headers = {"Retry-After": str(self.faults.retry_after_s)}
            hold = failure.code in {429, 504}
            return _json(failure.status, failure.code, headers if hold else {})

    async def _do(self, request: web.Request, place: Place) -> web.StreamResponse:
        if request.method == "GET":
            return await self._show(request, place)
        words = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
        await self.faults.before(words.get(request.method, request.method), place.of.plural)
        namespace = place.namespace or ""
        match request.method:
            case "POST":
                body, warnings = await _body(request, place.of)
                return _json(self.store.create(place.of, namespace, body), 201, warnings)
            case "PUT":
                body, warnings = await _body(request, place.of)
                made = self.store.replace(place.of, namespace, place.name, body, place.part)
                return _json(made, 200, warnings)
            case "PATCH":
                return await self._patch(request, place)
            case "DELETE" if place.name:
                grace = await _grace_s(request)
                return _json(self.store.delete(place.of, namespace, place.name, grace))
        raise Failure(405, "MethodNotAllowed", "the server does not allow this method")

    async def _show(self, request: web.Request, place: Place) -> web.StreamResponse:
        if place.name:
            await self.faults.before("get", place.of.plural)
            return _json(self.store.get(place.of, place.namespace or "", place.name))
        if request.query.get("watch") in {"1", "true"}:
            await self.faults.before("watch", place.of.plural)
            return await self._watch(request, place)
        await self.faults.before("list", place.of.plural)
        return _json(self._list(request, place))

    async def _patch(self, request: web.Request, place: Place) -> web.Response:
        kind = request.content_type
        patch = yaml.safe_load(await request.read())
        namespace = place.namespace or ""
        if kind == "application/apply-patch+yaml":
            try:
                self.store.get(place.of, namespace, place.name)
            except Failure:
                return _json(self.store.create(place.of, namespace, patch), 201)
        made = self.store.patch(place.of, namespace, place.name, patch, kind=kind, part=place.part)
        return _json(made)

    def _list(self, request: web.Request, place: Place) -> Object:
        """Pages begin where the last one ended, at the same version."""
        asked = request.query.get("resourceVersion", "")
        if asked not in {"", "0"} and _version(asked) > self.store.version:
            raise failures.from_the_future(_version(asked), self.store.version)
        shown = _shown(request)
        found = [one for one in self.store.listed(place.of, place.namespace) if shown(one)]
        version, begin = str(self.store.version), 0
        if token := request.query.get("continue"):
            version, _, after = token.partition(":")
            if int(version) < self.store.oldest:
                raise Failure(410, "Expired", "The provided continue parameter is too old")
            begin = int(after)
        limit = int(request.query.get("limit", "0")) or len(found)
        page = found[begin : begin + limit]
        metadata: Object = {"resourceVersion": version}
        left = len(found) - begin - len(page)
        if left > 0:
            metadata |= {"continue": f"{version}:{begin + limit}", "remainingItemCount": left}
        if not place.of.custom:
            page = [{k: v for k, v in one.items() if k not in _KIND} for one in page]
        return {
            "kind": f"{place.of.kind}List",
            "apiVersion": place.of.api_version,
            "metadata": metadata,
            "items": page,
        }

    async def _watch(self, request: web.Request, place: Place) -> web.StreamResponse:
        query = request.query
        asked = query.get("resourceVersion", "")
        version = None if asked in {"", "0"} else _version(asked)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        watch = Watch(self.store, place.of, place.namespace, _shown(request))
        self._watches[watch] = request
        try:
            await response.prepare(request)
            try:
                watch.begin(version, initial=query.get("sendInitialEvents") == "true")
            except Failure as failure:
                await response.write(error_line(failure.status))
                return response
            async with _ended_after(float(query.get("timeoutSeconds", "1800"))):
                await self._stream(watch, response, bookmarks=query.get(_BOOKMARKS) == "true")
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            watch.close()
            del self._watches[watch]
        return response

    async def _stream(self, watch: Watch, response: web.StreamResponse, *, bookmarks: bool) -> None:
        while True:
            try:
                async with asyncio.timeout(self._bookmark_s):
                    line = await watch.next()
            except TimeoutError:
                if bookmarks:
                    watch.bookmark()
                continue
            if line is None:
                return
            await self.faults.stand()
            if self.faults.truncate:
                self.faults.truncate -= 1
                await response.write(line[: len(line) // 2])
                raise ConnectionResetError
            await response.write(line)


_BOOKMARKS = "allowWatchBookmarks"
_KIND = {"kind", "apiVersion"}


@asynccontextmanager
async def _ended_after(seconds: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        return


def _version(text: str) -> int:
    if not text.isdigit():
        raise Failure(500, "InternalError", f"strconv.ParseUint: parsing {text!r}: invalid syntax")
    return int(text)


def _shown(request: web.Request) -> Callable[[Object], bool]:
    labels = by_labels(request.query.get("labelSelector", ""))
    fields = by_fields(request.query.get("fieldSelector", ""))
    return lambda one: labels(one["metadata"].get("labels") or {}) and fields(one)


def _discovered(store: Store, path: str) -> Object | None:
    found: Object | None = None
    match [part for part in path.split("/") if part]:
        case ["version"]:
            found = dict(discovery.VERSION)
        case ["api"]:
            found = discovery.core_versions()
        case ["apis"]:
            found = discovery.groups(store.served)
        case ["api", version]:
            found = discovery.kinds(store.served, "", version)
        case ["apis", group, version]:
            found = discovery.kinds(store.served, group, version)
        case ["openapi", "v3"]:
            found = discovery.open_api(store.served)
        case ["openapi", "v3", *root]:
            found = discovery.described(store.served, "/".join(root))
        case ["apis", group]:
            listed = discovery.groups(store.served)["groups"]
            found = next((one for one in listed if one["name"] == group), None)
            found = found and {**found, "kind": "APIGroup", "apiVersion": "v1"}
    return found


def _place(store: Store, path: str) -> Place | None:
    parts = [part for part in path.split("/") if part]
    if parts[:1] == ["api"]:
        group, version, rest = "", parts[1] if len(parts) > 1 else "", parts[2:]
    elif parts[:1] == ["apis"] and len(parts) > 2:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace: str | None = None
    if len(rest) > 2 and rest[0] == "namespaces" and rest[2] != "status":
        namespace, rest = rest[1], rest[2:]
    of = store.resource(group, version, rest[0]) if rest else None
    if of is None or len(rest) > 3 or (of is NAMESPACES and namespace):
        return None
    name, part = [*rest[1:], "", ""][:2]
    return Place(of, namespace, name, part)


async def _grace_s(request: web.Request) -> int | None:
    """What a deletion asks for, in its query or in its options."""
    options = await request.read()
    asked = (json.loads(options) if options else {}).get("gracePeriodSeconds")
    asked = request.query.get("gracePeriodSeconds", asked)
    return None if asked is None else int(asked)


async def _body(request: web.Request, of: Resource) -> tuple[Object, dict[str, str]]:
    """What was sent, without what a schema does not know, and the warnings about that."""
    body: Any = yaml.safe_load(await request.read())
    if not isinstance(body, dict):
        raise failures.bad("the body of the request is no object")
    unknown = list(schemas.pruned(body, of.schema)) if of.schema else []
    if not unknown:
        return body, {}
    said = ", ".join(f'unknown field "{path}"' for path in unknown)
    if request.query.get("fieldValidation") == "Strict":
        raise failures.bad(f"strict decoding error: {said}")
    quoted = said.replace('"', '\\"')
    return body, {"Warning": f'299 - "{quoted}"'}


def _json(found: Object, code: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    text = json.dumps(found, separators=(",", ":"))
    return web.Response(status=code, text=text, content_type=VIEWER, headers=headers)
